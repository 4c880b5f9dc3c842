"""One agent on one state directory: two would fight for one identity and write the same files.

The lock is the kernel's (`fcntl(2)`, record locks), so it ends with the process, however that ends;
and children that training code forks do not inherit it, so that none of them keeps an agent from
being started again.

Invariant: whoever is inside `only_agent` is the only one, on this machine, for that directory.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedloom.protocol.errors import UnavailableError, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

FILE = "agent.lock"
_TAKEN = {errno.EACCES, errno.EAGAIN}
_held: set[Path] = set()
"""By this process: its own locks are none to itself."""


_MEND = "stop that one, or enrol this one with a token and a directory of its own."


@contextmanager
def only_agent(directory: Path, mend: str = _MEND) -> Iterator[None]:
    """Be the only agent on a state directory, or what must not be there beside one.

    Args:
        directory: of the client's state; there already.
        mend: what to do about another, as the end of a sentence.

    Raises:
        UsageError: another agent runs on it.
        UnavailableError: the directory cannot be written to.
    """
    place = directory.resolve()
    if place in _held:
        raise _taken(directory, str(os.getpid()), mend)
    try:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(place / FILE, flags, 0o600)
    except OSError as error:
        raise UnavailableError(
            f"Expected a state directory that can be written to, got: {error}. Mend its owner and "
            "mode, or mount it for writing."
        ) from error
    try:
        _lock(handle, directory, mend)
        _held.add(place)
        yield
    finally:
        _held.discard(place)
        os.close(handle)


def _lock(handle: int, directory: Path, mend: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            holder = os.pread(handle, 20, 0).decode(errors="replace")
            raise _taken(directory, holder, mend) from None
        log.warning("%s cannot be locked (%s): let one agent alone run on it", directory, error)
        return
    with suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)


def _taken(directory: Path, holder: str, mend: str) -> UsageError:
    process = f"process {holder}" if holder.isdigit() else "another process"
    return UsageError(
        f"Expected nobody else on the state directory {directory}, got an agent that runs on it "
        f"({process}): {mend}"
    )
