"""Rules that choose whole updates by their neighbours: Krum, Multi-Krum and Bulyan.

Legend: n updates, f of them Byzantine at most, θ = n - 2f chosen, β = θ - 2f kept of a coordinate.

An update's score is the sum of its squared distances to its n - f - 2 nearest; the lowest wins, of
equal ones the first by client name. None of them is weighted.

References:
    Blanchard, El Mhamdi, Guerraoui, Stainer 2017, Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent, NeurIPS, section 4 (Krum, n >= 2f + 3) and section 5 (Multi-Krum).
    El Mhamdi, Guerraoui, Rouault 2018, The Hidden Vulnerability of Distributed Learning in
    Byzantium, https://arxiv.org/abs/1802.07927, section 4 (Bulyan, n >= 4f + 3).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.checks import check_count
from fedloom.strategies.exact.partial import Floats, Params
from fedloom.strategies.robust.base import Combine, Reduced, Robust, Window, weighted
from fedloom.strategies.robust.coordinate import mean_of_ranks, median_of, ranked_columns
from fedloom.strategies.robust.geometry import geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Krum(Robust):
    """The one update with the least distance to its n - f - 2 nearest others.

    Attributes:
        num_byzantine: f >= 0; a round needs 2f + 3 updates.
    """

    name: ClassVar[str] = "krum"
    num_byzantine: int

    def __post_init__(self) -> None:
        check_count("num_byzantine", self.num_byzantine, at_least=0)

    @property
    def min_updates(self) -> int:
        """2f + 3."""
        return 2 * self.num_byzantine + 3

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - remembers nothing
        distances = geometry(updates).distances()
        chosen = np.zeros(len(distances))
        chosen[_best(distances, range(len(distances)), self.num_byzantine)] = 1.0
        return weighted(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiKrum(Robust):
    """The mean of the updates with the lowest scores.

    Attributes:
        num_byzantine: f >= 0; a round needs 2f + 3 updates.
        num_selected: updates in the mean; n - f - 2 by default, as many as in a score.
    """

    name: ClassVar[str] = "multi_krum"
    num_byzantine: int
    num_selected: int | None = None

    def __post_init__(self) -> None:
        check_count("num_byzantine", self.num_byzantine, at_least=0)
        if self.num_selected is not None:
            check_count("num_selected", self.num_selected)

    @property
    def min_updates(self) -> int:
        """2f + 3, or the number selected."""
        return max(2 * self.num_byzantine + 3, self.num_selected or 0)

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - remembers nothing
        distances = geometry(updates).distances()
        n = len(distances)
        scores = _scores(distances, range(n), self.num_byzantine)
        count = self.num_selected or n - self.num_byzantine - 2
        chosen = np.zeros(n)
        chosen[np.argsort(scores, kind="stable")[:count]] = 1.0
        return weighted(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulyan(Robust):
    """Krum θ times, each time without those already chosen; then a mean about the median.

    Each coordinate is the mean of the β values nearest to the median of the θ chosen updates. If
    only m of them cover a coordinate, it is the mean of the max(1, m - 2f) nearest.

    Attributes:
        num_byzantine: f >= 0; a round needs 4f + 3 updates.
    """

    name: ClassVar[str] = "bulyan"
    num_byzantine: int

    def __post_init__(self) -> None:
        check_count("num_byzantine", self.num_byzantine, at_least=0)

    @property
    def min_updates(self) -> int:
        """4f + 3."""
        return 4 * self.num_byzantine + 3

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - remembers nothing
        distances, f = geometry(updates).distances(), self.num_byzantine
        left, chosen = list(range(len(distances))), []
        for _ in range(len(distances) - 2 * f):
            chosen.append(_best(distances, left, f))
            left.remove(chosen[-1])
        rows = np.array(sorted(chosen))

        def combine(window: Window) -> Reduced:
            covered = window.covered
            ranked, count, there = ranked_columns(
                window.values[rows], True if covered is True else covered[rows]
            )
            return _about_median(ranked, count, 2 * f), there

        return combine


def _scores(distances: Floats, rows: range | list[int], f: int) -> Floats:
    """Return the sum of the squared distances of each to its nearest others among `rows`."""
    among = distances[np.ix_(rows, rows)]
    nearest = max(1, len(rows) - f - 2)
    others = among[~np.eye(len(rows), dtype=np.bool_)].reshape(len(rows), len(rows) - 1)
    return np.asarray(np.sort(others, axis=1)[:, :nearest].sum(axis=1))


def _best(distances: Floats, rows: range | list[int], f: int) -> int:
    return rows[int(np.argmin(_scores(distances, rows, f)))]


def _about_median(ranked: Floats, count: NDArray[np.int64], left_out: int) -> Floats:
    """Return the mean of the values nearest to the median of each sorted column."""
    kept = np.maximum(count - left_out, np.minimum(count, 1))
    with np.errstate(invalid="ignore"):
        away = np.abs(ranked - median_of(ranked, count))
    away[np.isnan(away)] = np.inf
    order = np.argsort(away, axis=0, kind="stable")  # of two as near, the smaller value
    nearest = np.take_along_axis(ranked, order, axis=0)
    return mean_of_ranks(nearest, np.zeros_like(count), kept)
