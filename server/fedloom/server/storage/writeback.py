"""Starts writing data to disk early, so that the later sync is short.

Uses Linux's sync_file_range(2), which Python lacks; does nothing elsewhere. It is not a sync: data
that must survive a power cut is still synced.
"""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

_RANGE_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE


def _load() -> Callable[[int, int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError, AttributeError):
        function = ctypes.CDLL(None).sync_file_range
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        found: Callable[[int, int, int, int], int] = function
        return found
    return None


_sync_file_range = _load()


def begin(handle: int, start: int, size_bytes: int) -> None:
    """Let the kernel begin to write these bytes of a file, without waiting."""
    if _sync_file_range is not None and size_bytes > 0:
        _sync_file_range(handle, start, size_bytes, _RANGE_WRITE)


class Early:
    """A file that starts to write each block to disk at once; for blocks of megabytes.

    Args:
        file: open for writing in binary, at its start.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        count = self._file.write(data)
        begin(self._file.fileno(), self._position, count)
        self._position += count
        return count
