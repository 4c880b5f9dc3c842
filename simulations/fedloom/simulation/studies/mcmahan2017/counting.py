"""Rounds of a learning curve to a target, counted as by McMahan et al.

Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629, section 3: the learning curve is made
monotone by taking the best test accuracy over all rounds so far, and the count is where it crosses
the target, by linear interpolation between the discrete points of the curve.

Invariant: a longer curve never changes the count.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from fedloom.protocol.errors import UsageError

Point = tuple[int, float]
"""A round, and the accuracy on the test examples after it, from 0 to 1."""


def monotone(curve: Iterable[Point]) -> list[Point]:
    """The best so far at each point; NaN counts as no improvement.

    >>> monotone([(1, 0.5), (2, 0.4), (3, 0.6)])
    [(1, 0.5), (2, 0.5), (3, 0.6)]
    """
    best, points = 0.0, []
    for number, accuracy in curve:
        best = max(best, accuracy)  # the first argument where the second is NaN
        points.append((number, best))
    return points


def rounds_to(curve: Sequence[Point], target: float) -> float | None:
    """Where the monotone curve crosses the target; None if it never does.

    A target reached at the first point has that point's round, as nothing was measured before.

    >>> rounds_to([(1, 0.90), (2, 0.96), (3, 0.95), (4, 0.98)], 0.97)
    3.5

    Args:
        curve: rounds in ascending order.
        target: accuracy to reach.

    Raises:
        UsageError: rounds do not ascend.
    """
    for (before, _), (after, _) in pairwise(curve):
        if after <= before:
            raise UsageError(f"Expected rounds in ascending order, got {after} after {before}.")
    points = monotone(curve)
    if points and points[0][1] >= target:
        return float(points[0][0])
    for (start, low), (end, high) in pairwise(points):
        if high >= target:
            return start + (target - low) / (high - low) * (end - start)
    return None


def thinned(curve: Sequence[Point], target: float, keep: int = 50) -> list[Point]:
    """A curve's points for the record: evenly spaced ones, and those that determine the count.

    These are the first and the last point, the one that crosses the target, and the best before
    it, so that `rounds_to` of the thinned curve is that of the whole curve if it has no gaps.

    Args:
        curve: rounds in ascending order.
        target: accuracy to reach.
        keep: number of evenly spaced points, at least 2.
    """
    last = len(curve) - 1
    if last < keep:
        return list(curve)
    places = {round(number * last / (keep - 1)) for number in range(keep)}
    crossing = next((n for n, (_, accuracy) in enumerate(curve) if accuracy >= target), None)
    if crossing:
        best = max(range(crossing), key=lambda n: curve[n][1])
        places |= {best, crossing - 1, crossing}
    return [curve[place] for place in sorted(places)]
