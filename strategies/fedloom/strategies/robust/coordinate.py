"""Coordinate-wise rules: the median and the trimmed mean.

Neither is weighted, as in the paper and in flwr: a client that lies about its examples must not
gain influence.

References:
    Yin, Chen, Ramchandran, Bartlett 2018, Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, https://arxiv.org/abs/1803.01498, definitions 1 (coordinate-wise median) and
    2 (coordinate-wise trimmed mean), Algorithm 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.partial import Floats, Params
from fedloom.strategies.robust.base import Combine, Covered, Reduced, Robust, Window

_ROUNDING = 1e-9  # 0.29 of 100 is 28.999999999999996; 28 is never meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Median(Robust):
    """The median of each coordinate over the updates that cover it (even: mean of the middle two).

    Robust while fewer than half of the updates that cover a coordinate are Byzantine.
    """

    name: ClassVar[str] = "median"

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - needs no look
        return _median


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its largest and its smallest values.

    Of m clients that cover a coordinate, floor(fraction · m) are left out at each end.

    Attributes:
        fraction: left out at each end, in [0, 0.5); at least the share that may be Byzantine.
    """

    name: ClassVar[str] = "trimmed_mean"
    fraction: float = 0.2

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, at_least=0, below=0.5)

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - needs no look
        return self._combine

    def _combine(self, window: Window) -> Reduced:
        ranked, count, there = ranked_columns(window.values, window.covered)
        most = len(window.values)
        cut = np.array([math.floor(self.fraction * m + _ROUNDING) for m in range(most + 1)])
        return mean_of_ranks(ranked, cut[count], count - cut[count]), there


def ranked_columns(
    values: Floats, covered: Covered
) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_] | bool]:
    """Sort each column, missing values last.

    Returns:
        float64 [n, k] with infinity for missing values; number of values, int64 [k]; and whether
        there are any: True for all, or bool [k].
    """
    if covered is True:
        return np.sort(values, axis=0), np.full(values.shape[1], len(values)), True
    count = covered.sum(axis=0, dtype=np.int64)
    return np.sort(np.where(covered, values, np.inf), axis=0), count, count > 0


def mean_of_ranks(ranked: Floats, first: NDArray[np.int64], stop: NDArray[np.int64]) -> Floats:
    """Return the mean of the ranks `first:stop` of each column, added from the smallest up."""
    total = np.zeros(ranked.shape[1])
    for rank, row in enumerate(ranked):
        np.add(total, row, out=total, where=(first <= rank) & (rank < stop))
    return np.asarray(total / np.maximum(stop - first, 1))


def median_of(ranked: Floats, count: NDArray[np.int64]) -> Floats:
    """Return the median of each sorted column of so many values; 0 where there are none."""
    columns = np.arange(ranked.shape[1])
    low = ranked[np.maximum(count - 1, 0) // 2, columns]
    high = ranked[np.minimum(count // 2, len(ranked) - 1), columns]
    # Halves first, which are exact: a sum of two large values could overflow float64.
    return np.where(count % 2 == 1, low, np.where(count > 0, low / 2 + high / 2, 0.0))


def _median(window: Window) -> Reduced:
    ranked, count, there = ranked_columns(window.values, window.covered)
    return median_of(ranked, count), there
