"""Reads and writes at a position of an open file, on POSIX and on Windows.

Windows has no pread(2): there one lock of this process makes seek and read a single step, and the
file's own position moves. Flags for `os.open` that a system lacks are 0.
"""

import os
import sys
import threading
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
