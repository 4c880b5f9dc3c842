"""The server of a soak: `fedloom.server.app.run` that counts what it holds when it gets SIGUSR1.

Usage: soak_server.py STATE_DIR READY_FILE COUNTS_FILE
"""

import asyncio
import ctypes
import gc
import json
import logging
import signal
import sys
from collections import Counter
from pathlib import Path

from fedloom.server.app import run  # first: it tunes the allocator before grpc is loaded

# isort: split

from fedloom.protocol.atomic_files import write_whole


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


def in_use():
    """Bytes that are allocated by malloc, and bytes that it keeps free; None without glibc."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None, None
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return found.uordblks + found.hblkhd, found.fordblks


def counts():
    """Objects by type among those that the garbage collector tracks, tasks, and memory."""
    gc.collect()
    types = map(type, gc.get_objects())
    kinds = Counter(f"{each.__module__}.{each.__qualname__}" for each in types)
    try:
        tasks = len(asyncio.all_tasks())
    except RuntimeError:  # the signal came outside of the loop
        tasks = None
    used, free = in_use()
    return {
        "all": sum(kinds.values()), "kinds": dict(kinds), "tasks": tasks,
        "malloc_bytes": used, "malloc_free_bytes": free, "blocks": sys.getallocatedblocks(),
    }  # fmt: skip


def main():
    state, ready, counted = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    signal.signal(signal.SIGUSR1, lambda *_: write_whole(counted, json.dumps(counts())))
    run(state, ready=ready)


if __name__ == "__main__":
    main()
