"""low_rank: a matrix as the product of two thin ones, by one step of power iteration.

With M [m, n] the tensor as a matrix (its first dimension by the rest) and Q [n, r] the last right
factor, or random numbers: P = M Q made orthonormal, Q = Mᵀ P, and the decoded matrix is P Qᵀ.
Vectors, and matrices that would not shrink, are not encoded.

References:
    Vogels, Karimireddy and Jaggi 2019, PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization, https://arxiv.org/abs/1905.13727, algorithm 1 and section 3 (warm
    start, error feedback).

Invariant: decoding adds r products in order, each rounded to float32, so its bits do not depend on
a matrix library, its threads or the decoded range.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs.base import (
    WORK,
    ArrayInfo,
    Codec,
    Encoded,
    Floats,
    Read,
    Shape,
    size_of,
)
from fedloom.protocol.codecs.draws import Words64
from fedloom.strategies.checks import check_count
from fedloom.strategies.exact.lazy_arrays import pieces_of

_MEMORY = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank(Codec):
    """PowerSGD's approximation of a given rank.

    Attributes:
        rank: r, columns of the factors.

    Raises:
        TypeError: rank is not a whole number.
        ValueError: rank is below 1.
    """

    name: ClassVar[str] = "low_rank"
    forms: ClassVar[tuple[tuple[str, ...], ...]] = (("left", "right"),)
    remembers: ClassVar[bool] = True
    slow: ClassVar[bool] = True
    biased: ClassVar[bool] = True
    rank: int = 2

    def __post_init__(self) -> None:
        check_count("rank", self.rank)

    def applies(self, shape: Shape) -> bool:
        """Return whether it is a matrix, and the factors are smaller."""
        if len(shape) < 2 or 0 in shape:
            return False
        return self.size_bytes(shape) < 4 * size_of(shape)

    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """Both factors."""
        m, n = matrix_of(shape)
        return {"left": ArrayInfo("F32", (m, self.rank)), "right": ArrayInfo("F32", (n, self.rank))}

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Do one step of power iteration, from the last right factor if there is one."""
        m, n = matrix_of(shape)
        matrix = values.reshape(m, n)
        right = memory.get(_MEMORY)
        if right is None or right.shape != (n, self.rank) or not right.any():
            right = _random(n, self.rank, seed)
        if not all(np.isfinite(piece).all() for _, piece in pieces_of(values)):
            # decodes to non-finite values too
            nothing = np.full((m, self.rank), np.nan, np.float32)
            return Encoded({"left": nothing, "right": np.zeros((n, self.rank), np.float32)})
        left = orthonormal(np.einsum("ij,jk->ik", matrix, right, dtype=np.float64))
        factors = {
            "left": left.astype(np.float32),
            "right": np.einsum("ij,ik->jk", matrix, left, dtype=np.float64).astype(np.float32),
        }
        return Encoded(factors, memory={_MEMORY: factors["right"]})

    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> "_Inspector":
        """Return an inspector that holds both factors and yields their product at the end."""
        return _Inspector(shape, self.rank)

    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> "_Product":
        """Return a decoder that holds both factors."""
        m, n = matrix_of(shape)
        left = np.array(read["left"](0, m * self.rank)).reshape(m, self.rank)
        right = np.array(read["right"](0, n * self.rank)).reshape(n, self.rank)
        return _Product(left, right)


def matrix_of(shape: Shape) -> tuple[int, int]:
    """The shape of a tensor as a matrix."""
    return shape[0], math.prod(shape[1:])


def orthonormal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gram-Schmidt, twice over; columns that depend on those before become zeros."""
    out = np.array(matrix)
    for column in range(out.shape[1]):
        vector = out[:, column]
        before = float(np.sqrt(np.einsum("i,i->", vector, vector)))
        for _ in range(2):  # a single pass leaves rounding errors
            for earlier in range(column):
                other = out[:, earlier]
                vector -= np.einsum("i,i->", other, vector) * other
        norm = float(np.sqrt(np.einsum("i,i->", vector, vector)))
        vector[:] = vector / norm if norm > 1e-9 * before else 0
    return out


def _random(rows: int, rank: int, seed: int) -> Floats:
    """Uniform in (−1, 1)."""
    words = Words64(seed, rows * rank).at(0, rows * rank)
    unit = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return unit.reshape(rows, rank)


class _Product:
    """left · rightᵀ, rows at a time."""

    def __init__(self, left: Floats, right: Floats) -> None:
        self._left = left
        self._right = np.ascontiguousarray(right.T)
        self._columns = len(right)
        self._out = np.empty(0, np.float32)
        self._term = np.empty(0, np.float32)

    def block(self, start: int, stop: int) -> Floats:
        first, after = start // self._columns, -(-stop // self._columns)
        size = (after - first) * self._columns
        if size > self._out.size:
            self._out, self._term = np.empty(size, np.float32), np.empty(size, np.float32)
        out = self._out[:size].reshape(-1, self._columns)
        term = self._term[:size].reshape(-1, self._columns)
        out[:] = 0
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked on admission
            for column, row in zip(self._left[first:after].T, self._right, strict=True):
                np.multiply(column[:, None], row, out=term)
                np.add(out, term, out=out)
        begin = first * self._columns
        return self._out[start - begin : stop - begin]


class _Inspector:
    def __init__(self, shape: Shape, rank: int) -> None:
        self._size = size_of(shape)
        m, n = matrix_of(shape)
        self._factors = {"left": np.empty(m * rank, "f4"), "right": np.empty(n * rank, "f4")}
        self._come = {"left": 0, "right": 0}
        self._rank = rank

    def feed(self, role: str, items: NDArray[Any]) -> Iterator[Floats]:
        at = self._come[role]
        self._factors[role][at : at + items.size] = items
        self._come[role] += items.size
        return iter(())

    def finish(self) -> Iterator[Floats]:
        left, right = (factor.reshape(-1, self._rank) for factor in self._factors.values())
        product = _Product(left, right)
        for start in range(0, self._size, WORK):
            yield product.block(start, min(self._size, start + WORK))
