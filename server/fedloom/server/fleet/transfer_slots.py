"""Lanes for models and updates: few fast transfers at once, many slow ones.

A transfer at full speed keeps megabytes in flight, so only a few may run at a time, and the others
wait with nothing sent: that is what keeps the server's memory independent of the number of clients.
A device on a thin link keeps next to nothing in flight, but would hold its place for minutes, so
who turns out to be slow moves to a wider lane and smaller pieces, and makes room.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fedloom.protocol.transport.chunk_size import Chunks

SLOW_BYTES_PER_S = 1 << 20
"""Below this mean rate a transfer counts as slow: 8 Mbit/s."""

PATIENCE_S = 2.0
"""How long a transfer runs before its rate is judged."""

SLOW_PER_FAST = 64
SLOW_CHUNK_BYTES = 64 << 10


class Lane:
    """A place for one transfer."""

    def __init__(self, lanes: "Lanes") -> None:
        self._lanes = lanes
        self._begun = lanes.clock()
        self._passed = 0
        self._is_slow = False

    @property
    def chunk_bytes(self) -> int:
        """How much to send at a time."""
        return SLOW_CHUNK_BYTES if self._is_slow else self._lanes.chunks.size

    def passed(self, size_bytes: int, seconds: float = 0.0) -> None:
        """So many bytes have passed; a transfer that proves slow changes lanes if it can.

        Args:
            size_bytes: of the piece.
            seconds: that sending it took, where we are the sender.
        """
        self._passed += size_bytes
        if self._is_slow:
            return
        self._lanes.chunks.passed(size_bytes, seconds)
        spent_s = self._lanes.clock() - self._begun
        if spent_s > PATIENCE_S and self._passed < spent_s * SLOW_BYTES_PER_S:
            self._is_slow = self._lanes.slow_down()

    def leave(self) -> None:
        """Make room."""
        self._lanes.leave(slow=self._is_slow)


class Lanes:
    """Places for transfers in one direction.

    Args:
        fast: how many may run at full speed.
        clock: monotonic seconds.
        chunks: how much to send at a time at full speed.

    Attributes:
        busy: transfers under way.
        waiting: transfers that wait for a place.
    """

    def __init__(
        self,
        fast: int,
        clock: Callable[[], float] = time.monotonic,
        chunks: Chunks | None = None,
    ) -> None:
        self.clock = clock
        self.chunks = chunks or Chunks()
        self._fast = asyncio.Semaphore(fast)
        self._slow_free = fast * SLOW_PER_FAST
        self.busy = self.waiting = 0

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[Lane]:
        """Wait for a place and hold it."""
        self.waiting += 1
        try:
            await self._fast.acquire()
        finally:
            self.waiting -= 1
        lane = Lane(self)
        self.busy += 1
        try:
            yield lane
        finally:
            self.busy -= 1
            lane.leave()

    def slow_down(self) -> bool:
        """Give a fast place back for a slow one; False where there is none."""
        if not self._slow_free:
            return False
        self._slow_free -= 1
        self._fast.release()
        return True

    def leave(self, *, slow: bool) -> None:
        """Give a place back."""
        if slow:
            self._slow_free += 1
        else:
            self._fast.release()
