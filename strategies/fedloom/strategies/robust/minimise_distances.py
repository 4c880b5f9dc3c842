"""The solver of the geometric median, from the inner products of the points alone.

    minimise  f(v) = Σ α_i · |v - x_i|,   Σ α_i = 1

Legend: n points x, p the one of them with the least f, A the weight at p, y_i = x_i - p,
r_i = |y_i|, d_i = |v - x_i|, w_i = α_i / d_i (A / |v - p| for p), W = Σ w_i, g the gradient of f.

First p itself: it is the minimum if |Σ α_i·y_i/r_i| <= A (Kuhn 1973). If not, the step of Vardi and
Zhang leaves p to a smaller f. No step increases f, so no estimate coincides with a point, and f is
smooth on the way. A step is Newton's, shortened until f falls, and then Weiszfeld's,
v ← Σ w_i·x_i / W: it converges from any start, and its weights keep rounding errors small.

Vectors are combinations of the unit vectors y_i/r_i. So a step costs n² operations whatever their
dimension, and a point that is far away does not reduce the precision of those that are near.

f is convex and the minimum no farther than 2·f(v), so f(v) - min f <= 2·|g|·f(v): `gap` is 2·|g|.

References:
    Kuhn 1973, A note on Fermat's problem, Mathematical Programming 4 (optimality of a point).
    Vardi, Zhang 2000, The multivariate L1-median and associated data depth, PNAS 97, section 2.
    Beck, Sabach 2015, Weiszfeld's Method: Old and New Results, JOTA 164, sections 3 and 7 (descent,
    and a start below all points).
    Nocedal, Wright 2006, Numerical Optimization, algorithm 7.1 (Newton's step, by conjugate
    gradients).

Invariant: sums are NumPy's along one axis, never a product of a library: its threads and its blocks
would change the last bits.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.partial import Floats

_SAME: Final = 2.0**-50
"""Squared distance, relative to the squared norms, below which two points are one: the products'
rounding."""
_LEAST: Final = 2.0**-60
"""Least squared distance of an estimate to a point, relative to those of both to p."""
_TIE: Final = 1e-12
"""Relative difference of f below which two points are both minima."""
_MOST_PRODUCTS: Final = 100
"""Of conjugate gradients in a step."""
_HALVINGS: Final = 12
"""Of Newton's step; Weiszfeld's follows in any case."""


@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    """An estimate of the minimum.

    Attributes:
        shares: of the points in it, float64 [n], >= 0; their sum is 1.
        gap: upper bound of (f - min f) / f.
        steps: taken.
    """

    shares: Floats
    gap: float
    steps: int


def minimise(
    products: Floats, squares: Floats, weights: Floats, *, tolerance: float, most_steps: int
) -> Minimum:
    """Return the point of the least weighted sum of distances.

    Points with the same f as the best are minima together, and the result is their mean: of two of
    equal weight it is the middle.

    Args:
        products: inner products of the points, float64 [n, n].
        squares: squared distances between them, float64 [n, n].
        weights: α, > 0, float64 [n]; scaled to a sum of 1.
        tolerance: the gap to reach, > 0.
        most_steps: after which it stops in any case.
    """
    alpha = weights / weights.sum()
    sums = (np.sqrt(squares) * alpha).sum(axis=1)
    best = int(np.argmin(sums))
    norms = np.diagonal(products)
    here = squares[best] <= _SAME * (norms + norms[best])
    if here.all():
        return Minimum(alpha, 0.0, 0)
    points = _Points.about(products, best, ~here, alpha)
    pull = float(np.sqrt(max(0.0, _dot(points.alpha, points.times(points.alpha)))))
    if 2 * (pull - points.own) <= tolerance:
        minima = alpha * (here | (sums <= sums[best] * (1 + _TIE)))
        return Minimum(minima / minima.sum(), max(0.0, 2 * (pull - points.own)), 0)
    rate = float((points.alpha / points.lengths).sum())
    at = _Estimate.of(points, points.alpha * ((pull - points.own) / (rate * pull)))
    steps = 0
    while at.gap > tolerance and steps < most_steps:
        at = at.nearer().weiszfeld()
        steps += 1
    shares = np.empty(len(alpha))
    shares[~here] = at.pulls
    shares[here] = alpha[here] * (at.pull_of_own / points.own)
    return Minimum(shares / shares.sum(), at.gap, steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """The points other than p: unit vectors u, their products, lengths r and weights α; and A."""

    cosines: Floats
    lengths: Floats
    alpha: Floats
    own: float

    @classmethod
    def about(
        cls, products: Floats, best: int, others: NDArray[np.bool_], alpha: Floats
    ) -> "_Points":
        row = products[best, others]
        # Not by squared distances: those of a far point would hide the others in their rounding.
        inner = products[np.ix_(others, others)] - row[:, None] - row[None, :]
        inner += products[best, best]
        lengths = np.sqrt(np.diagonal(inner))
        cosines = inner / lengths[:, None] / lengths[None, :]
        return cls(cosines, lengths, alpha[others], float(alpha[~others].sum()))

    def times(self, m: Floats) -> Floats:
        """Return the inner products of Σ m_i·u_i with each u."""
        return np.asarray((self.cosines * m).sum(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class _Estimate:
    """v - p = Σ m_i·u_i, with what follows from it.

    Attributes:
        points: all.
        m: the combination.
        inner: inner products of v - p with the u.
        away: |v - p|.
        far: d, without that of p.
        pulls: w, without that of p.
        pull_of_own: w of p.
        slope: g as a combination of the u.
        inner_slope: inner products of g with the u.
        gap: 2·|g|.
    """

    points: _Points
    m: Floats
    inner: Floats
    away: float
    far: Floats
    pulls: Floats
    pull_of_own: float
    slope: Floats
    inner_slope: Floats
    gap: float

    @classmethod
    def of(cls, points: _Points, m: Floats) -> "_Estimate":
        inner = points.times(m)
        away, far = _distances(points, _dot(m, inner), inner)
        pulls, own = points.alpha / far, points.own / away
        slope = (own + float(pulls.sum())) * m - pulls * points.lengths
        inner_slope = points.times(slope)
        gap = 2 * float(np.sqrt(max(0.0, _dot(slope, inner_slope))))
        return cls(points, m, inner, away, far, pulls, own, slope, inner_slope, gap)

    def weiszfeld(self) -> "_Estimate":
        """Return the estimate after Weiszfeld's step."""
        total = self.pull_of_own + float(self.pulls.sum())
        return _Estimate.of(self.points, self.pulls * self.points.lengths / total)

    def nearer(self) -> "_Estimate":
        """Return the best estimate along Newton's step; this one if none is better."""
        step, inner_step = self._newton()
        least, chosen = self._sum_at(step, inner_step, 0.0), 0.0
        for halvings in range(_HALVINGS):
            share = 0.5**halvings
            value = self._sum_at(step, inner_step, share)
            if value < least:
                least, chosen = value, share
            elif chosen:
                break
        return _Estimate.of(self.points, self.m + chosen * step) if chosen else self

    def _sum_at(self, step: Floats, inner_step: Floats, share: float) -> float:
        inner = self.inner + share * inner_step
        square = _dot(self.m + share * step, inner)
        away, far = _distances(self.points, square, inner)
        return self.points.own * away + _dot(self.points.alpha, far)

    def _newton(self) -> tuple[Floats, Floats]:
        """Return the solution s of H·s = -g, and its inner products with the u."""
        size = self.gap / 2
        enough = (min(0.1, np.sqrt(size)) * size) ** 2
        step, inner_step = np.zeros_like(self.m), np.zeros_like(self.m)
        rest, inner_rest = -self.slope, -self.inner_slope
        way, inner_way, square = rest, inner_rest, _dot(rest, inner_rest)
        for _ in range(_MOST_PRODUCTS):
            bent = self._bend(way, inner_way)
            curvature = _dot(bent, inner_way)
            if not curvature > 0:
                break
            share = square / curvature
            step, inner_step = step + share * way, inner_step + share * inner_way
            rest = rest - share * bent
            inner_rest = self.points.times(rest)
            before, square = square, _dot(rest, inner_rest)
            if not square > enough:
                break
            way = rest + square / before * way
            inner_way = inner_rest + square / before * inner_way
        return step, inner_step

    def _bend(self, way: Floats, inner_way: Floats) -> Floats:
        """Return H·way: W·way - Σ w_i/d_i² · <v - x_i, way>·(v - x_i)."""
        along = _dot(self.m, inner_way)
        towards = self.pulls / self.far**2 * (along - self.points.lengths * inner_way)
        total = self.pull_of_own / self.away**2 * along + float(towards.sum())
        whole = self.pull_of_own + float(self.pulls.sum())
        return np.asarray(whole * way - total * self.m + towards * self.points.lengths)


def _distances(points: _Points, square: float, inner: Floats) -> tuple[float, Floats]:
    """Return the distances of v to p and to the others, from |v - p|² and its inner products."""
    own = points.lengths**2
    far = np.maximum(square - 2 * points.lengths * inner + own, _LEAST * (square + own))
    return float(np.sqrt(max(square, _LEAST * float(own.min())))), np.sqrt(far)


def _dot(a: Floats, b: Floats) -> float:
    return float((a * b).sum())
