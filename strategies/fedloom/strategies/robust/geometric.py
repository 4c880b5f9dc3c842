"""The geometric median: the point with the least weighted sum of distances to all updates.

Legend: α the weights, ν the smoothing, v the estimate, β its weights over the updates.

    β_i ← α_i / max(ν, |v - x_i|);   v ← Σ β_i · x_i / Σ β_i

Every v is a weighted mean of the updates, so the distances follow from the updates' inner products,
and all iterations together need one pass over the updates.

References:
    Pillutla, Kakade, Harchaoui 2022, Robust Aggregation for Federated Learning,
    https://arxiv.org/abs/1912.13445, section 3 (RFA), Algorithm 2 (smoothed Weiszfeld).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.exact.partial import Floats, Params
from fedloom.strategies.robust.base import Combine, Robust, weighted
from fedloom.strategies.robust.geometry import geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMedian(Robust):
    """The geometric median of the updates (RFA), by smoothed Weiszfeld iterations from their mean.

    Weighted, as in the paper: robust while less than half of the weight is Byzantine, so choose
    `weighting = "uniform"` if clients may lie about their examples. Each coordinate is the mean by
    β over the updates that cover it.

    Attributes:
        iterations: > 0; 3 suffice in the paper; their cost is negligible here.
        smoothing: ν > 0, the least distance used.
    """

    name: ClassVar[str] = "geometric_median"
    weighted: ClassVar[bool] = True
    iterations: int = 32
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations)
        check_number("smoothing", self.smoothing, above=0)

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - remembers nothing
        return weighted(self._shares(geometry(updates).products, updates.weights))

    def _shares(self, products: Floats, alpha: Floats) -> Floats:
        """Return β, float64 [n], which sums to 1, from all inner products [n, n]."""
        beta: Floats = alpha / alpha.sum()
        for _ in range(self.iterations):
            inner = (products * beta).sum(axis=1)
            squares = np.diagonal(products) - 2 * inner + (beta * inner).sum()
            away = np.sqrt(np.maximum(squares, 0.0))
            beta = alpha / np.maximum(self.smoothing, away)
            beta = beta / beta.sum()
        return beta
