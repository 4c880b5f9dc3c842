"""The geometric median: the point with the least weighted sum of distances to all updates.

It is a weighted mean of the updates, so it follows from their inner products, and all iterations
together need one pass over the updates: see `minimise_distances`.

References:
    Pillutla, Kakade, Harchaoui 2022, Robust Aggregation for Federated Learning,
    https://arxiv.org/abs/1912.13445, section 3 (RFA). Their three smoothed iterations of Weiszfeld
    are replaced by the minimum itself: a few iterations stay near the mean, which colluding clients
    move.
    Lopuhaä, Rousseeuw 1991, Breakdown points of affine equivariant estimators of multivariate
    location and covariance matrices, Annals of Statistics 19, theorem 2.2 (breakdown point 1/2).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.exact.partial import Params
from fedloom.strategies.robust.base import LazyMeans, Robust, weighted
from fedloom.strategies.robust.geometry import geometry
from fedloom.strategies.robust.minimise_distances import minimise


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMedian(Robust):
    """The geometric median of the updates.

    Weighted, as in the paper: robust while less than half of the weight is Byzantine, so choose
    `weighting = "uniform"` if clients may lie about their examples. Each coordinate is the mean, by
    the updates' shares in the median, over those that cover it.

    Attributes:
        tolerance: > 0: the sum of distances is at most this share above the least.
        iterations: > 0, after which a round closes with what there is, and a note says so. A few to
            some tens are needed.
    """

    name: ClassVar[str] = "geometric_median"
    weighted: ClassVar[bool] = True
    tolerance: float = 1e-9
    iterations: int = 200

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, above=0)
        check_count("iterations", self.iterations)

    def _means(self, updates: Updates, last: Params) -> LazyMeans:  # noqa: ARG002 - remembers nothing
        found = geometry(updates)
        minimum = minimise(
            found.products,
            found.distances(),
            updates.weights,
            tolerance=self.tolerance,
            most_steps=self.iterations,
        )
        note = ""
        if minimum.gap > self.tolerance:
            note = (
                f"geometric_median stopped after {minimum.steps} iterations: the sum of distances "
                f"may be {minimum.gap:.1g} of itself above the least, more than the tolerance of "
                f"{self.tolerance:g}; raise aggregation.iterations or aggregation.tolerance"
            )
        return LazyMeans(updates, weighted(minimum.shares), note)
