"""Atomic replacement of files: a temporary file is written and renamed.

`private_files` does the same for keys, which no other user may read at any time.

Source: rename(2): an existing file is replaced atomically.
Invariants: a reader of the file finds the old bytes or the new ones; after a failure the file is
unchanged and no draft is left. A draft is called `.NAME.PID`, so that no two processes share one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def drafted(path: Path, *, sync: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """A draft to write to, which replaces `path` when the context ends.

    Args:
        path: of the file; its folder exists.
        sync: also after a power loss.
        mode: of the new file, which the umask narrows.

    Raises:
        OSError: writing failed.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.touch(mode)
        yield draft
        if sync:
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        draft.replace(path)
        if sync:
            sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power loss."""
    if sys.platform == "win32":
        return  # it opens no directories
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: str | bytes, *, sync: bool = False, mode: int = 0o666) -> None:
    """Write a file as in `drafted`; text in UTF-8, with its line ends unchanged.

    Raises:
        OSError: writing failed; the file is unchanged.
    """
    with drafted(path, sync=sync, mode=mode) as draft:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)
