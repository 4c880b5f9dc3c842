"""Arrays that are made a piece at a time: what is as large as a model need never be in memory.

A `Pieces` has a shape and a dtype as an array has, and gives any run of its values when asked. What
is made of others, such as their difference, is made of their pieces, whenever it is asked for.
`np.asarray` makes a whole array of one, for code that needs that.

Invariants: the same run has the same bits whenever it is asked for, and those that it would have in
the whole array; nothing here holds more than the pieces that are asked for.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

BLOCK: Final = 1 << 16
"""Values in a piece by default."""


class Pieces(ABC):
    """Values of some shape that are made when they are asked for.

    Attributes:
        shape: of the whole.
        dtype: of the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values `start:stop` in row-major order, [stop - start]; not to be changed."""

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """What the whole takes."""
        return self.size * self.dtype.itemsize

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Expected that a copy may be made: the values are in no array.")
        whole = np.empty(self.size, self.dtype if dtype is None else dtype)
        for start, piece in pieces_of(self):
            whole[start : start + piece.size] = piece
        return whole.reshape(self.shape)


Values: TypeAlias = NDArray[Any] | Pieces


def piece_of(values: Values, start: int, stop: int) -> NDArray[Any]:
    """The values `start:stop` in row-major order, [stop - start]; not to be changed."""
    if isinstance(values, Pieces):
        return values.piece(start, stop)
    if values.flags.c_contiguous:
        return values.reshape(-1)[start:stop]
    return np.asarray(values.flat[start:stop])


def pieces_of(values: Values, step: int = BLOCK) -> Iterator[tuple[int, NDArray[Any]]]:
    """All values in row-major order: where each piece starts, and the piece."""
    for start in range(0, values.size, step):
        yield start, piece_of(values, start, min(start + step, values.size))


class Held(Pieces):
    """An array, for what is made of it to be made when it is asked for.

    Args:
        array: must not be changed.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Look at them."""
        return piece_of(self._array, start, stop)


@dataclass(frozen=True, slots=True)
class Changed(Pieces):
    """Values that are made of others, each of those in its place.

    Attributes:
        change: (pieces, where they start) → the values there.
        of: of one shape.
        shape: likewise.
        dtype: of what is made.
    """

    change: Callable[[list[NDArray[Any]], int], NDArray[Any]]
    of: tuple[Values, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Make them."""
        made = self.change([piece_of(values, start, stop) for values in self.of], start)
        return made.astype(self.dtype, copy=False)


def changed(
    change: Callable[[list[NDArray[Any]], int], NDArray[Any]],
    *of: Values,
    dtype: np.dtype[Any] | type[Any],
) -> Values:
    """Make values of others: at once where all of those are arrays, else when they are asked for.

    Args:
        change: (arrays of one dimension, where they start) → an array of as many values; each must
            depend on its place and the values there alone.
        of: values of one shape, at least one.
        dtype: of what is made.
    """
    shape: tuple[int, ...] = of[0].shape
    made = Changed(change, of, shape, np.dtype(dtype))
    if any(isinstance(values, Pieces) for values in of):
        return made
    flat = change([np.ascontiguousarray(values).reshape(-1) for values in of], 0)
    return flat.astype(made.dtype, copy=False).reshape(shape)


@dataclass(frozen=True, slots=True)
class Box(Pieces):
    """A box of values, read by rows of their first dimension.

    Attributes:
        whole: that it is of.
        ranges: half-open, one for each dimension.
    """

    whole: Pieces
    ranges: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override] # follows from the ranges
        """Of the box."""
        return tuple(stop - start for start, stop in self.ranges)

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override] # follows from the whole
        """Of the values."""
        return self.whole.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Read the rows that they are in."""
        if start >= stop:
            return np.empty(0, self.dtype)
        if not self.ranges:
            return self.whole.piece(start, stop)
        (top, _), *rest = self.ranges
        row, whole_row = math.prod(self.shape[1:]), math.prod(self.whole.shape[1:])
        first, after = start // row, -(-stop // row)
        rows = self.whole.piece((top + first) * whole_row, (top + after) * whole_row)
        rows = rows.reshape(after - first, *self.whole.shape[1:])
        found = rows[(slice(None), *(slice(a, b) for a, b in rest))].reshape(-1)
        return found[start - first * row : stop - first * row]


@dataclass(frozen=True, slots=True)
class Patched(Pieces):
    """Values with others in a box of them, made by rows of the first dimension.

    Attributes:
        whole: with the values elsewhere; of at least one dimension.
        ranges: half-open, one for each dimension.
        box: what is in the box.
    """

    whole: Values
    ranges: tuple[tuple[int, int], ...]
    box: Values

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override] # follows from the whole
        """Of the whole."""
        shape: tuple[int, ...] = self.whole.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override] # follows from the whole
        """Of the whole's values."""
        return self.whole.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Make the rows that they are in."""
        if start >= stop:
            return np.empty(0, self.dtype)
        (top, bottom), *rest = self.ranges
        row, box_shape = math.prod(self.shape[1:]), [b - a for a, b in rest]
        first, after = start // row, -(-stop // row)
        rows = np.array(piece_of(self.whole, first * row, after * row))
        rows = rows.reshape(after - first, *self.shape[1:])
        begin, end = max(first, top), min(after, bottom)
        if begin < end:
            inside, size = rows[begin - first : end - first], math.prod(box_shape)
            values = piece_of(self.box, (begin - top) * size, (end - top) * size)
            inside[(slice(None), *(slice(a, b) for a, b in rest))] = values.reshape(-1, *box_shape)
        return rows.reshape(-1)[start - first * row : stop - first * row]


class Chosen(Pieces):
    """The values under a mask, in row-major order.

    Args:
        whole: that they are of.
        bits: bool [size of the whole].
    """

    def __init__(self, whole: Values, bits: NDArray[np.bool_]) -> None:
        self._whole, self._bits = whole, bits
        counts = [int(np.count_nonzero(piece)) for _, piece in pieces_of(bits)]
        self._before = np.cumsum([0, *counts])
        self.shape = (int(self._before[-1]),)
        self.dtype = whole.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Read the blocks that they are in."""
        if start >= stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._before, start, side="right")) - 1
        after = int(np.searchsorted(self._before, stop, side="left"))
        found = [
            piece_of(self._whole, begin, end)[self._bits[begin:end]]
            for begin, end in pairwise(
                min(at * BLOCK, self._bits.size) for at in range(first, after + 1)
            )
        ]
        begin = int(self._before[first])
        return np.concatenate(found)[start - begin : stop - begin]
