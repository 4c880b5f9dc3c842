"""Transfer slots: few fast ones, many slow ones, and none is lost."""

import asyncio

import pytest

from fedloom.protocol.transport.methods import CHUNK_BYTES
from fedloom.server.fleet.transfer_slots import (
    JUDGED_AFTER_S,
    SLOW_CHUNK_BYTES,
    SLOW_PER_FAST,
    TransferSlots,
)


class Clock:
    """A clock set by the test."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


async def enter(slots):
    """A slot that is held until its context is closed."""
    context = slots.enter()
    return context, await asyncio.wait_for(context.__aenter__(), 1)


def test_full_slots_make_others_wait():
    """The second transfer begins when the first ends."""

    async def main():
        slots = TransferSlots(1, Clock())
        first, _ = await enter(slots)
        waiting = asyncio.ensure_future(enter(slots))
        await asyncio.sleep(0)
        assert not waiting.done()
        await first.__aexit__(None, None, None)
        second, _ = await waiting
        await second.__aexit__(None, None, None)

    asyncio.run(main())


def test_slow_transfer_frees_its_fast_slot():
    """It moves to a slow slot with small chunks."""

    async def main():
        clock = Clock()
        slots = TransferSlots(1, clock)
        thin, transfer = await enter(slots)
        assert transfer.chunk_bytes == CHUNK_BYTES
        clock.now = JUDGED_AFTER_S + 0.1
        transfer.passed(1000)
        assert transfer.chunk_bytes == SLOW_CHUNK_BYTES
        fast, _ = await enter(slots)
        await fast.__aexit__(None, None, None)
        await thin.__aexit__(None, None, None)
        again, _ = await enter(slots)
        with pytest.raises(TimeoutError):
            await enter(slots)
        await again.__aexit__(None, None, None)

    asyncio.run(main())


def test_fast_transfer_keeps_its_slot():
    """However long it takes."""

    async def main():
        clock = Clock()
        slots = TransferSlots(1, clock)
        _, transfer = await enter(slots)
        for second in range(1, 100):
            clock.now = float(second)
            transfer.passed(2 << 20)
        assert transfer.chunk_bytes == CHUNK_BYTES
        with pytest.raises(TimeoutError):
            await enter(slots)

    asyncio.run(main())


def test_slow_slots_are_limited_and_freed():
    """If all are taken, a slow transfer keeps its fast slot."""

    async def main():
        clock = Clock()
        slots = TransferSlots(1, clock)
        held = []
        for _ in range(SLOW_PER_FAST + 1):
            context, transfer = await enter(slots)
            clock.now += JUDGED_AFTER_S + 0.1
            transfer.passed(0)
            held.append((context, transfer))
        assert held[-1][1].chunk_bytes == CHUNK_BYTES
        await held[0][0].__aexit__(None, None, None)
        held[-1][1].passed(0)
        assert held[-1][1].chunk_bytes == SLOW_CHUNK_BYTES

    asyncio.run(main())
