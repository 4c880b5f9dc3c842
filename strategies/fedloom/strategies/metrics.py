"""Metrics of a round: example-weighted means that no order of arrival can change."""

import math
from collections.abc import Iterable, Mapping


def weighted_mean(reports: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean of each metric over the reports that have it, weighted by their examples.

    The sums are exact (`math.fsum` of products that are rounded once each), so any order of the
    reports gives the same bits. A metric with a value that is not finite, or with a sum past
    float64, has the mean NaN: one client's metric must not end everyone's round.

    Args:
        reports: `(num_examples, {name: value})` of each client, num_examples >= 0.

    Returns:
        Each metric that somebody reported over at least one example, sorted by name.

    Raises:
        ValueError: a number of examples is negative.
    """
    products: dict[str, list[float]] = {}
    examples: dict[str, int] = {}
    for num_examples, values in reports:
        if num_examples < 0:
            raise ValueError(f"Expected num_examples >= 0, got {num_examples}.")
        for name, value in values.items():
            products.setdefault(name, []).append(num_examples * value)
            examples[name] = examples.get(name, 0) + num_examples
    return {
        name: _sum(products[name]) / examples[name] for name in sorted(products) if examples[name]
    }


def _sum(terms: list[float]) -> float:
    if not all(map(math.isfinite, terms)):
        return math.nan
    try:
        return math.fsum(sorted(terms))  # sorted, because overflow on the way depends on order
    except OverflowError:
        return math.nan
