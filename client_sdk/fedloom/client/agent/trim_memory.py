"""Giving memory back that only the start, or a task, had needed: an idle agent should weigh little.

An agent that has connected has read most of the code of gRPC, of OpenSSL and of Python's library
once, and needs a fifth of it again: 38 MB of pages that stay until somebody else wants memory, on a
device that may have 512. They are files' pages that nobody wrote to, so letting them go loses
nothing: what is needed again is read from the page cache (measured: 68 MB, then 36, then 41 a
minute later).
"""

import contextlib
import ctypes
import gc
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_SMAPS = Path("/proc/self/smaps")
_MADV_DONTNEED = 4
_WRITTEN = ("Private_Dirty", "Shared_Dirty", "Anonymous", "Swap")


def trim() -> None:
    """Give back what is free on the heap; a millisecond or so. Elsewhere than on Linux, nothing."""
    with contextlib.suppress(OSError, AttributeError):  # another system, or another libc
        ctypes.CDLL(None).malloc_trim(0)


def slim() -> None:
    """Give back what is free on the heap, and files' pages that were only read.

    For an idle moment: it takes some 50 ms. On systems other than Linux it does nothing.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another system, or another libc
        libc = ctypes.CDLL(None, use_errno=True)
        libc.malloc_trim(0)
        for begin, end in clean_mappings(_SMAPS.read_text().splitlines()):
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def clean_mappings(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The mappings of files that cannot be written to, and of which no page was: begin and end.

    Args:
        smaps: lines of /proc/self/smaps.
    """
    begin, end, clean = 0, 0, False
    for line in smaps:
        first, *rest = line.split()
        if not first.endswith(":"):  # the first line of a mapping
            if clean:
                yield begin, end
            begin, end = (int(part, 16) for part in first.split("-"))
            clean = rest[0] in ("r-xp", "r--p") and rest[-1].startswith("/")
        elif first[:-1] in _WRITTEN and rest[0] != "0":
            clean = False
    if clean:
        yield begin, end
