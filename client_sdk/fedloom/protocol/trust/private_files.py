"""Files that only their owner may read, for keys.

A file is written atomically (temporary file, sync, rename, sync of the folder), and no other user
can read it at any time: it is created with mode 0600. A key and its certificates share one file,
because two files cannot be renamed at once, and a crash between them would leave a key that does
not match its certificate.

Invariants: `write_private` leaves either the old bytes or the new ones; the mode is never wider
than 0600. Windows has no modes: there a file's readers are those of its folder.
"""

import os
import secrets
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import UsageError
from fedloom.protocol.positional_files import BINARY, NO_LINK

HAS_MODES = os.name == "posix"
"""Whether files have modes; on Windows those who may read a file follow from its folder."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_directory(directory: Path) -> Path:
    """Make sure that a directory exists which only its owner can change.

    A missing one is created with mode 0700. An existing one is refused if others can write to it:
    they could replace a key.

    Raises:
        UsageError: others can write to it, or it is not a directory.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(
            f"Expected a folder at {directory}, got a file: choose another path."
        ) from None
    mode = stat.S_IMODE(directory.stat().st_mode)
    if HAS_MODES and mode & _OTHERS_WRITE:
        raise UsageError(
            f"{directory} holds keys, so only its owner may write to it, but its mode is {mode:o}: "
            f"chmod go-w {directory}"
        )
    return directory


def make_private(directory: Path, names: Iterable[str]) -> list[str]:
    """Take from other users what they may do with a directory, and with names in it.

    Folders get mode 0700 and files 0600, as far as they belong to this user: a container platform
    owns the folders that it mounts. Other names in the directory, and links, are left alone.

    Args:
        directory: of the state.
        names: of the files and folders in it that are made private, with all that is in them.

    Returns:
        What was changed, with its mode before: `PATH (mode 644)`.
    """
    found = [directory]
    for path in (directory / name for name in names):
        if path.is_dir() and not path.is_symlink():
            found += path.rglob("*")
        found.append(path)
    return [changed for path in found if (changed := _close(path))]


def _close(path: Path) -> str:
    """Make one file or folder private; returns what was changed, or an empty text."""
    try:
        state = path.lstat()
        mode = stat.S_IMODE(state.st_mode)
        is_kept = stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)
        if not is_kept or not mode & _OTHERS or not _is_ours(state):
            return ""
        path.chmod(mode & ~_OTHERS)
    except OSError:  # it is gone, or on a file system without modes
        return ""
    return f"{path} (mode {mode:o})"


def _is_ours(state: os.stat_result) -> bool:
    return sys.platform != "win32" and state.st_uid == os.geteuid()


def private_opener(path: str, flags: int) -> int:
    """For `open(path, mode, opener=private_opener)`: a new file has mode 0600."""
    return os.open(path, flags, 0o600)


def write_private(path: Path, data: bytes) -> None:
    """Write `data` under `path`, atomically, durably and with mode 0600.

    Raises:
        UsageError: the folder can be written by others (see `private_directory`).
        OSError: writing failed; `path` is unchanged.
    """
    folder = private_directory(path.parent)
    temporary = folder / f".{path.name}.{secrets.token_hex(8)}"
    try:
        _create(temporary, data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(folder)


def read_private(path: Path) -> bytes:
    """Read a file of keys, unless others could have read or changed it.

    Group-readable files are accepted, since container platforms mount secrets that way.

    Raises:
        UsageError: its mode is too open.
        FileNotFoundError: there is no such file.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if HAS_MODES and mode & (_OTHERS_WRITE | stat.S_IRWXO):
            raise UsageError(
                f"Expected mode 600 of {path}, which is for its owner alone, got {mode:o}. Set it: "
                f"chmod 600 {path}; and where others use this machine, replace the key."
            )
        return file.read()


def _create(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | BINARY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
