"""The bandwidth limit, on a virtual clock."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.client.budgets import Pace
from fedloom.client.budgets.pace import BURST_S
from fedloom.protocol.transport.chunk_size import MIN_CHUNK_BYTES


class Time:
    """A clock that `sleep` advances."""

    def __init__(self):
        self.now = 1000.0

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def spent(mbit_s, sizes, pauses=()):
    """Seconds until messages of these sizes have passed, with pauses before them."""
    time = Time()
    pace = Pace(mbit_s, time.clock, time.sleep)

    async def main():
        for number, size in enumerate(sizes):
            time.now += pauses[number] if number < len(pauses) else 0
            await pace.passed(size)

    asyncio.run(main())
    return time.now - 1000.0


def test_bytes_pass_at_the_rate():
    """8 Mbit/s are a megabyte a second, for any message size."""
    assert spent(8, [1_000_000] * 10) == pytest.approx(10)
    assert spent(8, [10_000] * 1000) == pytest.approx(10)
    assert spent(0.5, [1_000_000]) == pytest.approx(16)


def test_without_a_limit_nothing_waits():
    assert spent(None, [10**9]) == 0
    assert Pace().most(1 << 20) == 1 << 20


@given(st.lists(st.integers(1, 2_000_000), min_size=1), st.floats(0, 3600))
def test_no_time_is_saved_up_beyond_a_burst(sizes, pause):
    """After any pause, only a quarter of a second's bytes pass at once."""
    took = spent(8, sizes, [pause]) - pause
    assert sum(sizes) / 1e6 - BURST_S - 1e-6 <= took <= sum(sizes) / 1e6 + 1e-6


def test_two_transfers_share_the_rate():
    """The limit is the device's: the second transfer waits for the first one's bytes too."""
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    pace = Pace(8, lambda: 1000.0, sleep)

    async def main():
        await asyncio.gather(*(pace.passed(1_000_000) for _ in range(2)))

    asyncio.run(main())
    assert waits == pytest.approx([1, 2])


def test_messages_are_small_on_a_slow_link():
    """Several messages a second show the server that the transfer proceeds."""
    assert Pace(8).most(1 << 20) == 250_000
    assert Pace(0.02).most(1 << 20) == MIN_CHUNK_BYTES
    assert Pace(1000).most(1 << 20) == 1 << 20
