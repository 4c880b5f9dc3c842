"""Lazy arrays: computed a piece at a time, so that values of a model's size need not be in memory.

A `Pieces` has a shape and a dtype like an array, and computes any run of its values on request.
Values derived from others, such as a difference, are computed from their pieces on request.
`np.asarray` makes the whole array.

Invariants: a run always has the same bits, which are those of the whole array; only requested
pieces are held.
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
"""Default number of values in a piece."""


class Pieces(ABC):
    """Values of some shape that are computed on request.

    Attributes:
        shape: of the whole.
        dtype: of the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values `start:stop` in row-major order, [stop - start]; read-only."""

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Expected permission to copy: the values are in no array.")
        whole = np.empty(self.size, self.dtype if dtype is None else dtype)
        for start, piece in pieces_of(self):
            whole[start : start + piece.size] = piece
        return whole.reshape(self.shape)


Values: TypeAlias = NDArray[Any] | Pieces


def piece_of(values: Values, start: int, stop: int) -> NDArray[Any]:
    """The values `start:stop` in row-major order, [stop - start]; read-only."""
    if isinstance(values, Pieces):
        return values.piece(start, stop)
    if values.flags.c_contiguous:
        return values.reshape(-1)[start:stop]
    return np.asarray(values.flat[start:stop])


def pieces_of(values: Values, step: int = BLOCK) -> Iterator[tuple[int, NDArray[Any]]]:
    """All values in row-major order: the start of each piece, and the piece."""
    for start in range(0, values.size, step):
        yield start, piece_of(values, start, min(start + step, values.size))


class Held(Pieces):
    """An array as `Pieces`, so that values derived from it are lazy.

    Args:
        array: must not be changed.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Return a view."""
        return piece_of(self._array, start, stop)


@dataclass(frozen=True, slots=True)
class Changed(Pieces):
    """Values that are computed elementwise from others.

    Attributes:
        change: (pieces, their start) → the values there.
        of: the inputs, of one shape.
        shape: of the inputs.
        dtype: of the result.
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
    """Compute values from others: at once if all inputs are arrays, else on request.

    Args:
        change: (1-D arrays, their start) → an array of as many values; each must depend on its
            place and the values there alone.
        of: inputs of one shape, at least one.
        dtype: of the result.
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
        whole: the values around the box.
        ranges: half-open, one per dimension.
    """

    whole: Pieces
    ranges: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override] # follows from the ranges
        """Shape of the box."""
        return tuple(stop - start for start, stop in self.ranges)

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override] # follows from the whole
        """Dtype of the values."""
        return self.whole.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Read the rows that contain the values."""
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
    """Values with a box replaced by others, computed by rows of the first dimension.

    Attributes:
        whole: the values outside the box; at least one dimension.
        ranges: half-open, one per dimension.
        box: the values in the box.
    """

    whole: Values
    ranges: tuple[tuple[int, int], ...]
    box: Values

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override] # follows from the whole
        """Shape of the whole."""
        shape: tuple[int, ...] = self.whole.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override] # follows from the whole
        """Dtype of the whole."""
        return self.whole.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Compute the rows that contain the values."""
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
        whole: all values.
        bits: bool [size of the whole].
    """

    def __init__(self, whole: Values, bits: NDArray[np.bool_]) -> None:
        self._whole, self._bits = whole, bits
        counts = [int(np.count_nonzero(piece)) for _, piece in pieces_of(bits)]
        self._before = np.cumsum([0, *counts])
        self.shape = (int(self._before[-1]),)
        self.dtype = whole.dtype

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Read the blocks that contain the values."""
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
