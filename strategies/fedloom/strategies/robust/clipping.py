"""Rules that shorten updates: centered clipping about the last mean, and bounding of norms.

Legend: x_i the updates, v the centre, τ the radius, l iterations.

    v ← v + 1/n · Σ (x_i - v) · min(1, τ / |x_i - v|)

References:
    Karimireddy, He, Jaggi 2021, Learning from History for Byzantine Robust Optimization,
    https://arxiv.org/abs/2012.10333, section 4.2 and Algorithm 2 (centered clipping).
    Sun, Kairouz, Suresh, McMahan 2019, Can You Really Backdoor Federated Learning?,
    https://arxiv.org/abs/1911.07963, section 4 (norm thresholding).
    Nguyen et al. 2022, FLAME: Taming Backdoors in Federated Learning, USENIX Security,
    https://arxiv.org/abs/2101.02281, section 4 (the median of the norms as the bound).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.exact.partial import Floats, Params
from fedloom.strategies.robust.base import Combine, Reduced, Robust, Window, weighted
from fedloom.strategies.robust.geometry import block_of, geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class CenteredClipping(Robust):
    """The last round's mean, moved by the updates' differences from it, none longer than τ.

    Not weighted. The first round starts from zero. The mean of a coordinate is over the updates
    that cover it; distances take missing values as zero.

    Attributes:
        radius: τ > 0, in units of an update's norm; by default each iteration's median distance
            from the centre, which follows the updates as they shrink (ours, not the paper's).
        iterations: l > 0; the paper's experiments use 1.
    """

    name: ClassVar[str] = "centered_clipping"
    remembers: ClassVar[bool] = True
    radius: float | None = None
    iterations: int = 1

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_number("radius", self.radius, above=0)
        check_count("iterations", self.iterations)

    def _plan(self, updates: Updates, last: Params) -> Combine:
        rounds = self._factors(geometry(updates, centre=last).products)

        def combine(window: Window) -> Reduced:
            values, covered = window.values, window.covered
            start, stop = window.start, window.start + window.width
            centre = block_of(last, window.key[1], start, stop)
            count = np.full(len(centre), len(values)) if covered is True else covered.sum(axis=0)
            for factors in rounds:
                step = np.zeros_like(centre)
                for i, factor in enumerate(factors):
                    there = 1.0 if covered is True else covered[i]
                    step += factor * (values[i] - centre) * there
                centre = centre + step / np.maximum(count, 1)
            return centre, True if covered is True else count > 0

        return combine

    def _factors(self, products: Floats) -> list[Floats]:
        """Return the factor of each difference, for each iteration, float64 [n].

        Args:
            products: of the updates and, last, the centre, float64 [n + 1, n + 1].
        """
        n = len(products) - 1
        at = np.zeros(n + 1)  # the centre as a combination of the updates and the first centre
        at[n] = 1.0
        rounds = []
        for _ in range(self.iterations):
            inner = (products * at).sum(axis=1)
            squares = np.diagonal(products) - 2 * inner + (at * inner).sum()
            away = np.sqrt(np.maximum(squares[:n], 0.0))
            factors = _shortened(away, self.radius)
            rounds.append(factors)
            at = at * (1 - factors.sum() / n)
            at[:n] += factors / n
        return rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class NormBounding(Robust):
    """The weighted mean of updates whose norms are cut to a bound.

    It limits the influence of each client without detecting attackers: use it against huge updates.

    Attributes:
        bound: largest norm > 0; by default the median of the round's norms, as in FLAME.
    """

    name: ClassVar[str] = "norm_bounding"
    weighted: ClassVar[bool] = True
    bound: float | None = None

    def __post_init__(self) -> None:
        if self.bound is not None:
            check_number("bound", self.bound, above=0)

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - remembers nothing
        norms = geometry(updates, with_rows=()).norms
        return weighted(updates.weights, _shortened(norms, self.bound))


def _shortened(lengths: Floats, bound: float | None) -> Floats:
    """Return the factors that reduce lengths to at most `bound`, or to their median."""
    limit = float(np.median(lengths)) if bound is None else bound
    factors = np.ones_like(lengths)
    np.divide(limit, lengths, out=factors, where=lengths > limit)
    return factors
