"""Transfer slots for models and updates: few fast transfers at once, many slow ones.

A fast transfer has megabytes in flight. Only a few run at a time and the others wait, so the
server's memory does not grow with the number of clients. A slow transfer has little in flight but
takes minutes: once it proves slow, it moves to a slow slot with smaller chunks and frees its fast
one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fedloom.protocol.transport.chunk_size import Chunks

SLOW_BYTES_PER_S = 1 << 20
"""Below this mean rate a transfer counts as slow: 8 Mbit/s."""

JUDGED_AFTER_S = 2.0
"""Seconds that a transfer runs before its rate is judged."""

SLOW_PER_FAST = 64
SLOW_CHUNK_BYTES = 64 << 10


class Transfer:
    """A transfer in its slot."""

    def __init__(self, slots: "TransferSlots") -> None:
        self._slots = slots
        self._begun = slots.clock()
        self._passed = 0
        self._is_slow = False

    @property
    def chunk_bytes(self) -> int:
        """Size of the chunks to send."""
        return SLOW_CHUNK_BYTES if self._is_slow else self._slots.chunks.size

    def passed(self, size_bytes: int, seconds: float = 0.0) -> None:
        """Count a chunk; a transfer that proves slow moves to a slow slot if one is free.

        Args:
            size_bytes: of the chunk.
            seconds: that sending it took; 0 for received chunks.
        """
        self._passed += size_bytes
        if self._is_slow:
            return
        self._slots.chunks.passed(size_bytes, seconds)
        spent_s = self._slots.clock() - self._begun
        if spent_s > JUDGED_AFTER_S and self._passed < spent_s * SLOW_BYTES_PER_S:
            self._is_slow = self._slots.slow_down()

    def leave(self) -> None:
        """Free the slot."""
        self._slots.leave(slow=self._is_slow)


class TransferSlots:
    """Slots for transfers in one direction.

    Args:
        fast: number of fast slots; there are `SLOW_PER_FAST` times as many slow ones.
        clock: monotonic seconds.
        chunks: sizes of chunks in fast slots.

    Attributes:
        busy: transfers in progress.
        waiting: transfers that wait for a slot.
    """

    def __init__(
        self, fast: int, clock: Callable[[], float] = time.monotonic, chunks: Chunks | None = None
    ) -> None:
        self.clock = clock
        self.chunks = chunks or Chunks()
        self._fast = asyncio.Semaphore(fast)
        self._slow_free = fast * SLOW_PER_FAST
        self.busy = self.waiting = 0

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[Transfer]:
        """Wait for a fast slot and hold it."""
        self.waiting += 1
        try:
            await self._fast.acquire()
        finally:
            self.waiting -= 1
        transfer = Transfer(self)
        self.busy += 1
        try:
            yield transfer
        finally:
            self.busy -= 1
            transfer.leave()

    def slow_down(self) -> bool:
        """Exchange a fast slot for a slow one; False if none is free."""
        if not self._slow_free:
            return False
        self._slow_free -= 1
        self._fast.release()
        return True

    def leave(self, *, slow: bool) -> None:
        """Free a slot."""
        if slow:
            self._slow_free += 1
        else:
            self._fast.release()
