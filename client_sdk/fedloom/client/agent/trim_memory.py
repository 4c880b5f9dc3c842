"""Returns memory to the system that only the start, or a task, needed.

After connecting, an agent has read most of the code of gRPC, OpenSSL and Python's library once and
needs a fifth of it again: 38 MB of pages, on a device that may have 512. The pages are unmodified
file pages, so releasing them loses nothing: they are read again from the page cache (measured:
68 MB, then 36, then 41 a minute later).
"""

import asyncio
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
    """Return free heap memory; takes about a millisecond. Does nothing outside Linux."""
    with contextlib.suppress(OSError, AttributeError):  # another system, or another libc
        ctypes.CDLL(None).malloc_trim(0)


def trim_all() -> None:
    """Return free heap memory and unmodified file pages.

    Call it when idle: it takes some 50 ms. Does nothing outside Linux.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another system, or another libc
        libc = ctypes.CDLL(None, use_errno=True)
        libc.malloc_trim(0)
        for begin, end in clean_mappings(_SMAPS.read_text().splitlines()):
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


async def trim_when_idle(idle: asyncio.Event, busy: asyncio.Event, after_s: float) -> None:
    """Trim after the start and after each task, when nothing was to do for `after_s` seconds.

    Between rounds that follow each other sooner, memory is kept: it would be needed again.
    """
    while True:
        await idle.wait()
        try:
            await asyncio.wait_for(busy.wait(), after_s)
        except TimeoutError:
            trim_all()
            await busy.wait()


def clean_mappings(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of the read-only file mappings without a modified page.

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
