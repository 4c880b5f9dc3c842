"""Draws without replacement, from raw 64-bit numbers and exactly rounded arithmetic alone.

Weighted draws draw with replacement and skip clients that are drawn already: successive sampling,
each draw in proportion to the weights of those left. Exponential clocks (Efraimidis and
Spirakis 2006) would need a logarithm, whose last bit differs between machines.

Source: Tillé 2006, "Sampling Algorithms", section 5.4.1 (successive sampling).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedloom.strategies.selection.base import Known, Occasion, Places

_WEIGHTED, _REST, _SHUFFLE, _AMONG = 1, 2, 3, 4
"""Purposes of streams; 0 is the uniform draw."""


def smallest(numbers: NDArray[np.uint64], count: int) -> Places:
    """The places of the `count` smallest numbers, smallest first: O(n + count log count)."""
    if not 0 < count < len(numbers):
        return np.argsort(numbers, kind="stable")[:count]
    places = np.sort(np.argpartition(numbers, count - 1)[:count])
    return places[_ascending(numbers[places])]


def _ascending(numbers: NDArray[np.uint64]) -> Places:
    """The stable sort order; takes a quarter of the time if all numbers differ, as usual."""
    order = np.argsort(numbers)
    found = numbers[order]
    return np.argsort(numbers, kind="stable") if (found[1:] == found[:-1]).any() else order


def uniformly(occasion: Occasion, count: int, among: Places | None = None, part: int = 0) -> Places:
    """Draw so that every subset and order is equally likely.

    Args:
        occasion: source of randomness.
        count: number to draw.
        among: places to draw from; all by default.
        part: distinguishes several such draws of one occasion.
    """
    if among is None:
        return smallest(occasion.raw(len(occasion)), count)
    return among[smallest(occasion.raw(len(among), _AMONG, part), count)]


def weighted(occasion: Occasion, weights: ArrayLike, count: int) -> Places:
    """Draw one after the other, each in proportion to the weights of those left.

    Those of weight 0 come last, uniformly.

    Args:
        occasion: source of randomness.
        weights: float64 [n], finite and >= 0.
        count: number to draw, at most n.
    """
    left = np.array(weights, np.float64)
    largest = left.max(initial=0.0)
    if largest > 0:
        left /= largest  # the sum of the largest weights must not overflow
    chosen = np.empty(0, np.intp)
    part = 0
    while len(chosen) < count and left.any():
        need = count - len(chosen)
        edges = np.cumsum(left)
        numbers = occasion.raw(2 * need + 16, _WEIGHTED, part) >> np.uint64(11)
        at = numbers.astype(np.float64) * 2.0**-53 * edges[-1]
        # Rounding may carry the largest number to the last edge, which stands for the last client.
        found = np.minimum(np.searchsorted(edges, at, side="right"), np.flatnonzero(left)[-1])
        new = _first_occurrences(found)[:need]
        left[new] = 0.0
        chosen = np.concatenate([chosen, new])
        part += 1
    if len(chosen) == count:
        return chosen
    rest = np.setdiff1d(np.arange(len(left)), chosen)
    more = rest[smallest(occasion.raw(len(rest), _REST), count - len(chosen))]
    return np.concatenate([chosen, more])


def shuffled(occasion: Occasion, places: Places) -> Places:
    """The same places in an order in which each is equally likely to come first."""
    return places[np.argsort(occasion.raw(len(places), _SHUFFLE), kind="stable")]


def sizes(known: Known) -> NDArray[np.int64]:
    """Examples of each candidate; the mean of the others for an unknown one.

    Returns:
        int64 [n], at least 1 for an unknown client.
    """
    met = known.rounds > 0
    total = int(known.num_examples[met].sum())
    mean = max(1, total // max(1, int(met.sum())))
    return np.where(met, known.num_examples, mean)


def _first_occurrences(values: Places) -> Places:
    """Each different value once, in the order of first occurrence."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]
