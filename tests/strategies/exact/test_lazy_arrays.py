"""Arrays that are computed piece by piece equal the whole arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.strategies.exact.lazy_arrays import (
    Box,
    Changed,
    Chosen,
    Held,
    changed,
    piece_of,
    pieces_of,
)

SHAPES = st.lists(st.integers(1, 7), max_size=3).map(tuple)


def array_of(shape, seed):
    """Values that are all different, in one of several orders in memory."""
    values = np.random.default_rng(seed).permutation(1000)[: int(np.prod(shape))]
    array = values.reshape(shape).astype(np.float32)
    return [array, np.asfortranarray(array), np.repeat(array[None], 2, 0)[0]][seed % 3]


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 99), st.data())
def test_any_run_of_values_equals_the_array(shape, seed, data):
    """In row-major order, for any memory layout."""
    array = array_of(shape, seed)
    start = data.draw(st.integers(0, array.size))
    stop = data.draw(st.integers(start, array.size))
    expected = array.reshape(-1)[start:stop]
    for values in (array, Held(array)):
        np.testing.assert_array_equal(piece_of(values, start, stop), expected)
    np.testing.assert_array_equal(np.asarray(Held(array)), array)
    assert [at for at, _ in pieces_of(array, 3)] == list(range(0, array.size, 3))


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 99), st.data())
def test_boxes_and_masks_equal_indexing(shape, seed, data):
    """Also a piece at a time."""
    array = array_of(shape, seed)
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    ranges = tuple(
        (start, data.draw(st.integers(start + 1, size)))
        for start, size in zip(starts, shape, strict=True)
    )
    box = Box(Held(array), ranges)
    expected = array[tuple(slice(*each) for each in ranges)]
    np.testing.assert_array_equal(np.asarray(box), expected)
    bits = np.random.default_rng(seed).random(array.size) < 0.5
    chosen, among = Chosen(Held(array), bits), array.reshape(-1)[bits]
    np.testing.assert_array_equal(np.asarray(chosen), among)
    for values, whole in ((box, expected), (chosen, among)):
        stop = data.draw(st.integers(0, whole.size))
        start = data.draw(st.integers(0, stop))
        np.testing.assert_array_equal(values.piece(start, stop), whole.reshape(-1)[start:stop])


def test_a_mask_over_many_blocks_chooses_the_same():
    """The values before a piece are counted by blocks."""
    rng = np.random.default_rng(3)
    array, bits = rng.random(200_000), rng.random(200_000) < 0.1
    bits[65536:131072] = False
    chosen = Chosen(array, bits)
    pieces = [chosen.piece(at, min(at + 777, chosen.size)) for at in range(0, chosen.size, 777)]
    np.testing.assert_array_equal(np.concatenate(pieces), array[bits])


def test_results_of_arrays_are_arrays_and_results_of_pieces_are_lazy():
    """With equal values."""
    array, calls = np.arange(12.0).reshape(3, 4), []

    def plus(of, start):
        calls.append(start)
        return of[0] + start + np.arange(of[0].size)

    at_once = changed(plus, array, dtype=np.float32)
    assert isinstance(at_once, np.ndarray)
    assert at_once.dtype == np.float32
    assert calls == [0]
    waiting = changed(plus, Held(array), dtype=np.float32)
    assert isinstance(waiting, Changed)
    assert calls == [0]
    np.testing.assert_array_equal(waiting.piece(5, 9), at_once.reshape(-1)[5:9])
    assert (waiting.shape, waiting.size, waiting.nbytes) == ((3, 4), 12, 48)


def test_pieces_cannot_be_an_array_without_a_copy():
    with pytest.raises(ValueError, match="permission to copy"):
        np.array(Held(np.ones(2)), copy=False)
