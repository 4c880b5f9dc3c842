"""A bandwidth limit: a token bucket of a quarter second.

Source: RFC 2697, section 3, with one rate. A message larger than the bucket passes, and the next
one waits longer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fedloom.protocol.transport.chunk_size import MIN_CHUNK_BYTES

BURST_S = 0.25


class Pace:
    """Limits the average rate of all transfers in one direction.

    Args:
        mbit_s: 10^6 bit/s; None for no limit.
        clock: seconds.
        sleep: waits for a number of seconds.
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
        """Largest size of one message, bytes: a slow link still sends several a second."""
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
