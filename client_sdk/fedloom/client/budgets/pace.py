"""A bandwidth cap: a token bucket of a quarter second.

Source: the algorithm is that of RFC 2697, section 3, with one rate; a message that is larger than
the bucket is let through, and paid for after.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fedloom.protocol.transport.chunk_size import MIN_CHUNK_BYTES

BURST_S = 0.25


class Pace:
    """Lets bytes pass in one direction at a rate on average, whatever the number of transfers.

    Args:
        mbit_s: 10^6 bit/s; None for no cap.
        clock: seconds.
        sleep: for so many seconds.
    """

    def __init__(
        self,
        mbit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s = None if mbit_s is None else mbit_s * 1e6 / 8
        self._clock, self._sleep = clock, sleep
        self._free_at = clock()

    def most(self, size_bytes: int) -> int:
        """How large one message may be, so that a slow link still moves several times a second."""
        if self._bytes_per_s is None:
            return size_bytes
        return min(size_bytes, max(MIN_CHUNK_BYTES, int(self._bytes_per_s * BURST_S)))

    async def passed(self, size_bytes: int) -> None:
        """Wait until the next message may pass."""
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - BURST_S) + size_bytes / self._bytes_per_s
        if (wait_s := self._free_at - now) > 0:
            await self._sleep(wait_s)
