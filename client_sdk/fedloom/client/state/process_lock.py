"""The lock of a state directory: two agents would share one identity and write the same files.

It is a kernel lock (`fcntl(2)`, record locks; on Windows `_locking`): it ends with the process in
any case, and children that training code forks do not inherit it, so that they do not prevent a
restart of the agent.

Invariant: at most one process on this machine is inside `only_agent` for a directory.
"""

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedloom.protocol import positional_files
from fedloom.protocol.errors import UnavailableError, UsageError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

log = logging.getLogger(__name__)

FILE = "agent.lock"
_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_LOCKED_BYTE = 1 << 20
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
        flags = os.O_RDWR | os.O_CREAT | positional_files.NO_LINK
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


def is_locked(directory: Path) -> bool:
    """Whether a process has locked a state directory."""
    if directory.resolve() in _held:
        return True
    try:
        handle = os.open(directory / FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        _take(handle)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(handle)
    return False


def _take(handle: int) -> None:
    """Lock a byte that no holder writes, so that Windows lets others read who holds the lock."""
    if sys.platform == "win32":
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock(handle: int, directory: Path, remedy: str) -> None:
    try:
        _take(handle)
    except OSError as error:
        if error.errno in _TAKEN:
            holder = positional_files.read_at(handle, 20, 0).decode(errors="replace")
            raise _taken(directory, holder, remedy) from None
        log.warning("%s cannot be locked (%s): run only one agent with it", directory, error)
        return
    with suppress(OSError):  # a full disk: the lock is held anyway
        os.ftruncate(handle, 0)
        positional_files.write_at(handle, str(os.getpid()).encode(), 0)


def _taken(directory: Path, holder: str, remedy: str) -> UsageError:
    process = f"process {holder}" if holder.isdigit() else "another process"
    return UsageError(
        f"An agent already uses the state directory {directory} ({process}): {remedy}"
    )
