"""Calls that read files: in a thread, where there are bytes enough to hold up the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SMALL_BYTES: Final = 1 << 20
"""To read and check so many bytes takes a millisecond or two; a thread and back costs 0.2 ms."""


async def off_loop(size_bytes: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that reads `size_bytes` of files: in a thread above `SMALL_BYTES`."""
    if size_bytes <= SMALL_BYTES:
        return call(*args, **kwargs)
    return await asyncio.to_thread(call, *args, **kwargs)
