"""Reads and writes at a position of an open file, or at its end, on POSIX and on Windows.

Windows has no pread(2): there one lock of this process makes seek and read a single step, and the
file's own position moves. Flags for `os.open` that a system lacks are 0.
"""

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""Open no symbolic link."""
BINARY: int = getattr(os, "O_BINARY", 0)
"""Do not translate the ends of lines."""

_seeking = threading.Lock()


def seek_and_read(handle: int, size: int, offset: int) -> bytes:
    """As `read_at`, where there is no pread."""
    with _seeking:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)


def seek_and_write(handle: int, data: "Buffer", offset: int) -> int:
    """As `write_at`, where there is no pwrite."""
    with _seeking:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)


if sys.platform == "win32":
    read_at, write_at = seek_and_read, seek_and_write
else:

    def read_at(handle: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from a position on; b"" at the end of the file."""
        return os.pread(handle, size, offset)

    def write_at(handle: int, data: "Buffer", offset: int) -> int:
        """Write bytes at a position; returns how many were written."""
        return os.pwrite(handle, data, offset)


def read_into(handle: int, view: memoryview, offset: int) -> int:
    """Fill a buffer of bytes from a position on; returns how many were read."""
    if sys.platform != "win32":
        return os.preadv(handle, [view], offset)
    got = seek_and_read(handle, len(view), offset)
    view[: len(got)] = got
    return len(got)


def append_line(path: Path, line: bytes) -> int:
    """Append a line to a private file, on a line of its own if the last one was truncated.

    Returns:
        The bytes of the file afterwards.

    Raises:
        OSError: it cannot be written, or there is no room for the whole line.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | NO_LINK | BINARY
    handle = os.open(path, flags, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and read_at(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        whole = os.write(handle, line) == len(line)
    finally:
        os.close(handle)
    if not whole:
        raise OSError("no room for a complete entry")
    return size + len(line)
