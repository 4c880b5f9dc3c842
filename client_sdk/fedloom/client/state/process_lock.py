"""The lock of a state directory: two agents would share one identity and write the same files.

It is a kernel lock (`fcntl(2)`, record locks): it ends with the process in any case, and children
that training code forks do not inherit it, so that they do not prevent a restart of the agent.

Invariant: at most one process on this machine is inside `only_agent` for a directory.
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
"""Directories locked by this process, which the kernel lock does not detect."""

_REMEDY = "stop that agent, or enrol this one with its own token and directory."


@contextmanager
def only_agent(directory: Path, remedy: str = _REMEDY) -> Iterator[None]:
    """Lock a state directory, for an agent or for work that must not run beside one.

    Args:
        directory: of the client's state; must exist.
        remedy: what to do if an agent runs, as the end of a sentence.

    Raises:
        UsageError: another agent runs on it.
        UnavailableError: the directory cannot be written to.
    """
    place = directory.resolve()
    if place in _held:
        raise _taken(directory, str(os.getpid()), remedy)
    try:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(place / FILE, flags, 0o600)
    except OSError as error:
        raise UnavailableError(
            f"Cannot write to the state directory: {error}. Correct its owner and mode, or mount "
            "it for writing."
        ) from error
    try:
        _lock(handle, directory, remedy)
        _held.add(place)
        yield
    finally:
        _held.discard(place)
        os.close(handle)


def _lock(handle: int, directory: Path, remedy: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            holder = os.pread(handle, 20, 0).decode(errors="replace")
            raise _taken(directory, holder, remedy) from None
        log.warning("%s cannot be locked (%s): run only one agent with it", directory, error)
        return
    with suppress(OSError):  # a full disk: the lock is held anyway
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)


def _taken(directory: Path, holder: str, remedy: str) -> UsageError:
    process = f"process {holder}" if holder.isdigit() else "another process"
    return UsageError(
        f"An agent already uses the state directory {directory} ({process}): {remedy}"
    )
