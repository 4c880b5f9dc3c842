"""Chunk sizes: fixed ones do not change, `auto` measures again after each gigabyte."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.transport.chunk_size import SETTLED_BYTES, SIZES, TRIAL_BYTES, Chunks, check
from fedloom.protocol.transport.methods import CHUNK_BYTES, MAX_MESSAGE_BYTES


def send(chunks, total, seconds_of):
    """Send this many bytes; returns the used sizes in order."""
    used = []
    while total > 0:
        size = chunks.size
        used.append(size)
        chunks.passed(size, seconds_of(size))
        total -= size
    return used


def test_a_fixed_size_does_not_change():
    """At any speed."""
    chunks = Chunks(300_000)
    assert set(send(chunks, 50 << 20, lambda size: size)) == {300_000}
    assert Chunks().size == CHUNK_BYTES


@pytest.mark.parametrize("best", SIZES)
def test_auto_settles_on_the_fastest(best):
    """For each size, after 16 MiB of each."""
    chunks = Chunks("auto")
    rate = dict.fromkeys(SIZES, 100e6) | {best: 130e6}
    used = send(chunks, len(SIZES) * TRIAL_BYTES, lambda size: size / rate[size])
    assert set(used) == set(SIZES)
    assert set(send(chunks, 100 << 20, lambda size: size / rate[size])) == {best}


def test_equally_fast_sizes_select_the_largest():
    """Fewer messages are less work."""
    chunks = Chunks("auto")
    send(chunks, len(SIZES) * TRIAL_BYTES, lambda size: size / 1e8)
    assert chunks.size == SIZES[-1]


def test_auto_measures_again_after_a_gigabyte():
    """The speed of a link may change."""
    chunks = Chunks("auto")
    send(chunks, len(SIZES) * TRIAL_BYTES, lambda size: 1.0)  # larger sizes are faster
    assert chunks.size == SIZES[-1]
    send(chunks, SETTLED_BYTES, lambda size: 1.0)
    used = send(chunks, len(SIZES) * TRIAL_BYTES, lambda size: float(size) ** 2)
    assert set(used) == set(SIZES)
    assert chunks.size == SIZES[0]


def test_short_ends_of_transfers_are_not_measured():
    chunks = Chunks("auto")
    for _ in range(1000):
        chunks.passed(1234, 100.0)
    assert chunks.size == SIZES[0]


@pytest.mark.parametrize("setting", [0, 1000, MAX_MESSAGE_BYTES + 1, "fast", 1e6, True])
def test_an_invalid_size_is_refused(setting):
    """The message has the range."""
    with pytest.raises(UsageError, match='Expected chunk_bytes = "auto" or from 16384 to 2097152'):
        check(setting)
