"""Several passes over sums as one, compiled by numba where it is installed: the extra `fast`.

The sums have the same bits with and without it: products are exact in float64, and the rest is
integer addition modulo 2^64.
"""

import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.fixed_point import Ints

log = logging.getLogger(__name__)

LEAST: Final = 1 << 18
"""Values of a tensor for which numba is loaded, in 0.3 s."""
_LEAST_WHEN_LOADED: Final = 1 << 10
"""Values of a tensor from which compiled functions are faster than numpy's passes."""

_PIECE: Final = 1024
"""Values whose two words and buffers fit the first cache: 32 KiB."""

Compiled: TypeAlias = Callable[..., Any]


def is_faster(size: int) -> bool:
    """Whether to use compiled functions for a tensor of this size; the bits are the same."""
    return size >= (_LEAST_WHEN_LOADED if "numba" in sys.modules else LEAST)


@cache
def fold() -> Compiled | None:
    """Return `_fold`, compiled; None without numba."""
    return compile_(_fold)


@cache
def settle() -> Compiled | None:
    """Return `_settle`, compiled; None without numba."""
    return compile_(_settle)


@cache
def floats() -> Compiled | None:
    """Return `_floats`, compiled; None without numba."""
    return compile_(_floats)


def compile_(function: Compiled, **options: Any) -> Compiled | None:
    """Return a function that numba compiles at its first call; None without numba.

    Args:
        function: in the part of Python that numba has.
        options: of `numba.njit`.
    """
    if (njit := _njit()) is None:
        return None
    found: Compiled
    try:
        found = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder for its cache
        found = njit(nogil=True, **options)(function)
    return found


def is_available() -> bool:
    """Whether functions are compiled."""
    return _njit() is not None


@cache
def _njit() -> Compiled | None:
    if find_spec("numba") is None:
        return None
    try:
        from numba import njit  # noqa: PLC0415 - only large arrays need it
    except ImportError as error:  # each release of numba has a latest numpy
        log.warning("numba is not used: %s", error)
        return None
    found: Compiled = njit
    return found


def _fold(  # noqa: PLR0917 - numba calls by position
    first: Ints,
    second: Ints,
    arrays: tuple[NDArray[Any], ...],
    scales: tuple[float, ...],
    coarse: float,
    fine: float,
) -> int:
    """Add the bits of `values · scale` of each array, cut into two slices, to two words.

    Args:
        first: of the coarser slices, int64 [n].
        second: of the finer ones, int64 [n].
        arrays: of values, float32 or float64 [n], all of one type; it is compiled for each number
            of them.
        scales: one of each array; their products with the values are exact in float64.
        coarse: constant that rounds to the first word's unit when it is added.
        fine: constant that rounds to the second word's unit.

    Returns:
        Values of which the two slices leave something.
    """
    upper, lower = np.empty(_PIECE), np.empty(_PIECE)
    upper_bits, lower_bits = upper.view(np.uint64), lower.view(np.uint64)
    left = 0
    for start in range(0, first.size, _PIECE):
        one = first[start : start + _PIECE].view(np.uint64)
        two = second[start : start + _PIECE].view(np.uint64)
        for number in range(len(arrays)):
            piece, scale = arrays[number][start : start + _PIECE], scales[number]
            for n in range(piece.size):
                value = np.float64(piece[n]) * scale
                upper[n] = value + coarse
                rest = value - (upper[n] - coarse)
                lower[n] = rest + fine
                left += lower[n] - fine != rest
            for n in range(piece.size):
                one[n] += upper_bits[n]
                two[n] += lower_bits[n]
    return left


def _settle(first: Ints, second: Ints, biases: tuple[int, int], bits: int) -> None:
    """Remove biases from two words, and carry from the second to the first.

    Args:
        first: int64 [n].
        second: int64 [n]; afterwards from -2^(bits-1) to 2^(bits-1) - 1.
        biases: of each word, subtracted modulo 2^64; int64.
        bits: of the second word's slices.
    """
    half = np.int64(1) << (bits - 1)
    for n in range(first.size):
        value = second[n] - biases[1]
        carry = (value + half) >> bits
        second[n] = value - (carry << bits)
        first[n] += carry - biases[0]


def _floats(first: Ints, second: Ints, unit: float) -> NDArray[np.float64]:
    """Return `first + second · unit` of settled words int64 [n], as float64 [n]."""
    total = np.empty(first.size)
    for n in range(first.size):
        total[n] = np.float64(second[n]) * unit + np.float64(first[n])
    return total
