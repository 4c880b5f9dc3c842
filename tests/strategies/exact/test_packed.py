"""Packed sums: as few bits as the largest needs, the same bytes for equal sums, no loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import DELTA, Full, Partial, weight_units
from fedloom.strategies.exact.coverage import Mask, Slice
from fedloom.strategies.exact.packed import Packing, pack
from fedloom.strategies.exact.partial import TensorSpec
from fedloom.strategies.exact.unpacking import floats

KEY = (DELTA, "w")


def empty(size, *, narrow=False, exponent=40):
    return Partial(
        {KEY: TensorSpec(shape=(size,), dtype=np.dtype(np.float32))}, exponent, narrow=narrow
    )


def summed(updates, **settings):
    partial = empty(updates.shape[1], **settings)
    for row, values in enumerate(updates):
        partial.add_array(KEY, Full(), weight_units(1 + row), values)
        partial.count += 1
    return partial


def through_bytes(partial):
    """A partial that was packed and added to an empty one; and its bytes."""
    units, packing, blocks = partial.packed(KEY)
    again = partial.empty()

    def reader(packing, blocks):
        packed, position = np.concatenate([np.zeros(0, np.uint8), *blocks]), 0
        assert len(packed) == packing.num_bytes(partial.specs[KEY].size)

        def read(count):
            nonlocal position
            position += count
            return packed[position - count : position]

        return packed, read

    packed, read = reader(packing, blocks)
    again.unpacking(KEY, packing).add(read)
    again.count_units(KEY, units)
    if (weights := partial.packed_weights(KEY)) is not None:
        again.unpacking_weights(KEY, weights[0]).add(reader(*weights)[1])
    again.count_all(partial.count, partial.nonzero, partial.vanished)
    return again, packing, packed.tobytes()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("size", [1, 7, 65_536, 70_001])
def test_a_packed_sum_is_the_same_sum(size, narrow):
    """Also over several blocks, and with values of very different magnitudes."""
    rng = np.random.default_rng(size)
    updates = rng.normal(0, 10.0 ** rng.integers(-9, 2, (3, size))).astype(np.float32)
    partial = summed(updates, narrow=narrow)
    again, packing, _ = through_bytes(partial)
    assert again == partial
    assert narrow or packing.bits < 128


@given(
    st.lists(st.lists(st.floats(-1000, 1000, width=32), min_size=3, max_size=3), min_size=1),
    st.integers(-20, 60),
)
def test_any_sum_comes_through(rows, exponent):
    """Zeros, subnormals and mixed signs too."""
    partial = summed(np.array(rows, np.float32), exponent=exponent)
    assert through_bytes(partial)[0] == partial


def test_equal_sums_have_equal_bytes():
    """Whatever the order, and whichever words the sums once needed."""
    rng = np.random.default_rng(5)
    updates = rng.normal(0, 1, (4, 999)).astype(np.float32)
    whole, first, second = empty(999), empty(999), empty(999)
    for row, values in enumerate(updates):
        whole.add_array(KEY, Full(), weight_units(3), values)
        (first if row % 2 else second).add_array(KEY, Full(), weight_units(3), values)
    tiny = np.full(999, 2.0**-120, np.float32)  # needs a third word, until it is cancelled
    first.add_array(KEY, Full(), weight_units(1), tiny)
    second.add_array(KEY, Full(), weight_units(1), -tiny)
    whole.add_zeros(KEY, Full(), weight_units(2))
    first.merge(second)
    assert through_bytes(first)[1:] == through_bytes(whole)[1:]


def test_zeros_take_no_bytes():
    """Of a tensor that updates cover with zeros alone."""
    partial = empty(12)
    partial.add_zeros(KEY, Full(), weight_units(2))
    again, packing, packed = through_bytes(partial)
    assert (packing, packed) == (Packing(0, 0), b"")
    assert again == partial
    assert empty(12).packed(KEY) is None


def test_negative_sums_pack_to_their_own_width():
    """-1, 0 and 1 take two bits; -2 takes no more."""
    assert pack([np.array([-1, 0, 1])], 3, 10)[0] == Packing(2, -10)
    assert pack([np.array([-2, 0])], 2, 10)[0] == Packing(1, -9)


@given(
    st.lists(
        st.tuples(st.floats(2.0**-30, 2.0**33), st.lists(st.booleans(), min_size=9, max_size=9)),
        min_size=1,
    ),
    st.booleans(),
)
def test_weights_per_coordinate_come_through(updates, whole):
    """Whatever the weights, also beside an update of the whole tensor; and merges agree."""
    parts = [empty(9, exponent=-20), empty(9, exponent=-20)]
    for number, (weight, bits) in enumerate(updates):
        values = np.arange(sum(bits), dtype=np.float32)
        partial = parts[number % 2]
        partial.add_array(KEY, Mask(np.array(bits)), weight_units(weight), values)
        partial.count += 1
    if whole:
        parts[0].add_array(KEY, Full(), weight_units(3.0), np.ones(9, np.float32))
    both, again = parts[0] + parts[1], empty(9, exponent=-20)
    for partial in parts:
        if partial.packed(KEY) is not None:
            again.merge(through_bytes(partial)[0])
    again.count = both.count
    assert again == both
    if both.packed(KEY) is not None:
        assert through_bytes(again)[1:] == through_bytes(both)[1:]
        mean, covered = both.mean_block(KEY, 0, 9)
        for found, expected in zip(again.mean_block(KEY, 0, 9), (mean, covered), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_weights_take_the_bits_of_the_largest():
    """Whole numbers up to 6, with a sign."""
    partial = empty(12)
    partial.add_array(KEY, Slice(((0, 2),)), weight_units(6), np.ones(2, np.float32))
    partial.add_array(KEY, Slice(((4, 6),)), weight_units(4), np.ones(2, np.float32))
    assert partial.packed_weights(KEY)[0] == Packing(3, 1)


@pytest.mark.parametrize("packing", [Packing(200, -20), Packing(3, -2000), Packing(60, 40)])
def test_sums_that_no_word_holds_are_refused(packing):
    """Too large, or below the last word."""
    with pytest.raises(ValueError, match="words"):
        empty(4).unpacking(KEY, packing)


def test_the_bound_of_a_sum_is_that_of_its_addends():
    """One addend more than the weights allow is outside."""
    partial = empty(2)
    for _ in range(3):
        partial.add_array(KEY, Full(), weight_units(2), np.full(2, 8.0, np.float32))
    _, packing, blocks = partial.packed(KEY)
    sums = floats(partial.unpacking(KEY, packing).words(next(blocks), 2))
    assert (sums <= partial.bound(8.0, 6.0, 3)).all()
    assert (sums > partial.bound(8.0, 6.0 * (1 - 1e-14), 3)).all()
    assert partial.bound(8.0, np.zeros(1), 3) == 0.0
