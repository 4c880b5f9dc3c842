"""Norms, inner products and distances of updates, exact, in two passes over blocks.

Each update is rounded to 41 bits below its own largest value, as two slices of integers,
`x ≈ 2^(e - b) · (h + l · 2^-b)`, so short that a product of slices over a tile of coordinates is an
integer that float64 represents exactly. These are added as integers, so neither the size of blocks
nor a library's order of addition nor its threads can change a bit of a distance. Each update has
its own scale, so a client with huge values does not reduce the precision of others.

Legend: n updates, e the exponent of an update's largest value, b bits in a slice, h and l the two
slices of a value.

Sources: Ozaki, Ogita, Oishi, Rump 2012, Error-free transformations of matrix multiplication by
using fast routines of matrix multiplication, Numerical Algorithms 59, section 3 (the slicing).

Invariants:
    - Products are those of the rounded vectors exactly, up to the final rounding to float64.
    - Two equal updates are at distance 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.exact.partial import DELTA, Floats, Params

Ints = NDArray[np.int64]

BITS: Final = 20
"""b: 2^b · 2^b · TILE <= 2^53."""
TILE: Final = 8192
"""Coordinates whose products are summed in float64."""
_TILE_VALUES: Final = 1 << 17  # values of all updates in a tile: 1 MiB, of which there are eight
_SMALL: Final = 64
"""OpenBLAS takes one thread for products of up to 64 · 64 · 64."""
_LEAST_EXPONENT: Final = -400  # what is smaller than 2^-420 counts as zero
_HALF: Final = 32
_LOW: Final = (1 << _HALF) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Norms and inner products of a round's updates.

    Attributes:
        squares: squared norms, float64 [n].
        products: inner products with the requested updates, float64 [n, m].
    """

    squares: Floats
    products: Floats

    @property
    def norms(self) -> Floats:
        """Euclidean norms, float64 [n]."""
        return np.sqrt(self.squares)

    def distances(self) -> Floats:
        """Squared distances between all updates, float64 [n, n]; only after `geometry(updates)`."""
        away = self.squares[:, None] + self.squares[None, :] - 2 * self.products
        np.fill_diagonal(away, 0.0)
        return np.maximum(away, 0.0)


def geometry(
    updates: Updates, *, with_rows: Sequence[int] | None = None, centre: Params | None = None
) -> Geometry:
    """Return norms and inner products of the deltas, zero where nothing is covered.

    Args:
        updates: n of them.
        with_rows: the updates to multiply with; all by default, () for norms alone.
        centre: one more vector, by tensor, that becomes the last row; zero where it has no tensor.
    """
    rows = _Rows(updates, centre)
    exponents = np.full(rows.count, _LEAST_EXPONENT)
    for values in rows.blocks(1 << 16):
        largest = np.abs(values).max(axis=1, initial=0.0)
        exponents = np.maximum(exponents, np.where(largest > 0, np.frexp(largest)[1], exponents))
    sums = _Sums(exponents, with_rows)
    for values in rows.blocks(TILE):
        sums.add(values)
    return sums.result()


class _Rows:
    """The deltas as rows of a matrix, with the centre as last row, read by blocks."""

    def __init__(self, updates: Updates, centre: Params | None) -> None:
        self._updates = updates
        self._centre = centre
        self.count = len(updates.clients) + (centre is not None)

    def blocks(self, most: int) -> Iterator[Floats]:
        """Yield the matrix by blocks of at most `most` columns."""
        most = max(1, min(most, _TILE_VALUES // max(1, self.count)))
        for key in self._updates.specs:
            if key[0] != DELTA or not self._updates.covered(key):
                continue
            for start, stop in self._updates.ranges(key):
                values, _ = self._updates.block(key, start, stop)
                if self._centre is not None:
                    values = np.vstack([values, self._centre_block(key[1], start, stop)])
                for low in range(0, stop - start, most):
                    yield values[:, low : low + most]

    def _centre_block(self, tensor: str, start: int, stop: int) -> Floats:
        return block_of(self._centre or {}, tensor, start, stop)


def block_of(tensors: Params, tensor: str, start: int, stop: int) -> Floats:
    """Return some flat coordinates of a tensor, float64; zeros where there is no such tensor."""
    if tensor not in tensors:
        return np.zeros(stop - start)
    return np.asarray(tensors[tensor]).reshape(-1)[start:stop].astype(np.float64)


class _Sums:
    """Inner products as integers: of high with high slices, high with low, and low with low.

    Args:
        exponents: of the rows, int [n].
        picked: rows to multiply with; None for all.
    """

    def __init__(self, exponents: NDArray[np.int_], picked: Sequence[int] | None) -> None:
        n = len(exponents)
        self._exponents = exponents
        self._scale = np.ldexp(1.0, BITS - exponents)[:, None]
        self._picked = np.arange(n) if picked is None else np.array(picked, np.int64)
        self._is_all = picked is None
        self._own = _Wide((3, n))
        self._pairs = _Wide((2 * n, 2 * self._picked.size))
        self._slices = np.empty((2, n, 0))
        self._rest = np.empty((n, 0))

    def add(self, values: Floats) -> None:
        """Add a tile of coordinates."""
        high, low = slices = self._sliced(values)
        n = len(self._exponents)
        both = slices.reshape(2 * n, -1)
        if self._is_all:
            # The squares are in it.
            self._pairs.add(_product(both, both))
            return
        pairs = ((high, high), (high, low), (low, low))
        self._own.add(np.array([(a * b).sum(axis=1) for a, b in pairs]))
        if self._picked.size:
            picked = slices[:, self._picked].reshape(2 * self._picked.size, -1)
            self._pairs.add(_product(both, picked))

    def _sliced(self, values: Floats) -> Floats:
        """Return high and low slices, float64 [2, n, k]; valid until the next tile."""
        if self._rest.shape != values.shape:
            self._slices, self._rest = np.empty((2, *values.shape)), np.empty(values.shape)
        (high, low), rest = self._slices, self._rest
        np.multiply(values, self._scale, out=rest)  # exact: a power of two
        np.rint(rest, out=high)
        np.subtract(rest, high, out=rest)
        np.multiply(rest, 2.0**BITS, out=rest)
        np.rint(rest, out=low)
        return self._slices

    def result(self) -> Geometry:
        """The sums, in float64."""
        n, m = len(self._exponents), self._picked.size
        exponents, pairs = self._exponents, self._pairs.floats()
        crossed = pairs[:n, m:] + pairs[n:, :m]
        both = exponents[:, None] + exponents[self._picked][None, :]
        products = _joined(pairs[:n, :m], crossed, pairs[n:, m:], both)
        if self._is_all:
            return Geometry(np.diagonal(products), products)
        own = self._own.floats()
        return Geometry(_joined(own[0], 2 * own[1], own[2], 2 * exponents), products)


def _product(a: Floats, b: Floats) -> Floats:
    """Return a · bᵀ of integers, by products so small that no library starts threads.

    On a busy machine threads that waited for each other took fifty times as long.
    """
    out = np.empty((len(a), len(b)))
    for i in range(0, len(a), _SMALL):
        for j in range(i if a is b else 0, len(b), _SMALL):
            left, right = a[i : i + _SMALL], b[j : j + _SMALL]
            block = _small_product(left, right)
            out[i : i + _SMALL, j : j + _SMALL] = block
            if a is b:
                out[j : j + _SMALL, i : i + _SMALL] = block.T
    return out


def _small_product(a: Floats, b: Floats) -> Floats:
    """Return a · bᵀ of at most `_SMALL` rows each, a few columns at a time."""
    count = a.shape[1] // _SMALL
    even = count * _SMALL
    left = a[:, :even].reshape(len(a), count, _SMALL).transpose(1, 0, 2)
    right = b[:, :even].reshape(len(b), count, _SMALL).transpose(1, 2, 0)
    total = (left @ right).sum(axis=0)
    total += a[:, even:] @ b[:, even:].T
    return np.asarray(total)


def _joined(high: Floats, mixed: Floats, low: Floats, exponents: NDArray[np.int_]) -> Floats:
    total = high + np.ldexp(mixed, -BITS) + np.ldexp(low, -2 * BITS)
    return np.asarray(np.ldexp(total, exponents - 2 * BITS))


class _Wide:
    """Sums of whole float64 numbers as integers of more than 64 bits, in two halves."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._high = np.zeros(shape, np.int64)
        self._low = np.zeros(shape, np.int64)

    def add(self, whole: Floats) -> None:
        """Add numbers of magnitude up to 2^53."""
        ints = whole.astype(np.int64)
        self._high += ints >> _HALF
        self._low += ints & _LOW

    def floats(self) -> Floats:
        """The sums, rounded to float64."""
        # Carry first, so that both halves are exact in float64 and their sum is rounded once.
        high = self._high + (self._low >> _HALF)
        low = self._low & _LOW
        return np.asarray(np.ldexp(high.astype(np.float64), _HALF) + low.astype(np.float64))
