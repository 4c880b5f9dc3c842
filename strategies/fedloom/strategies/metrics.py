"""Metrics of a round, over the clients that reported: means, quantiles, histograms.

Results do not depend on the order of reports. A non-finite metric never ends a round: its mean is
NaN, and quantiles and histograms leave it out and count it.

A client's number of examples is its own claim. Its weight in a mean is limited, and a mean is
flagged if it disagrees with the clients' median: if it is outside the quartiles, over at least
`LEAST_CLIENTS` clients. Quartiles count every client once, and a quarter of the clients cannot
move them beyond the values of the others.

Sources: for quantiles, Hyndman and Fan 1996, "Sample Quantiles in Statistical Packages", type 7;
for their breakdown point, Huber and Ronchetti 2009, "Robust Statistics", section 1.4.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from fedloom.strategies.checks import check_count, check_number, check_share

Report: TypeAlias = tuple[str, int, Mapping[str, float]]
"""(client, num_examples, {metric: value})."""

QUARTILES = (0.25, 0.5, 0.75)
"""Quantiles that are always kept: the median and the interquartile range."""
LEAST_CLIENTS = 3
"""With fewer, no client is outside the others."""
_ROUNDING = 1e-9
"""Share of a value by which a mean of equal values may be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The metrics that are kept of a round.

    Attributes:
        enabled: False keeps only the number of examples.
        mean: means weighted by examples.
        quantiles: over clients, each counting once; shares from 0 to 1, ascending; beside
            `QUARTILES`.
        max_weight: largest weight of one client in a mean, > 0; None for any. A run sets it to its
            own `max_weight` by default.
        bins: of a histogram over clients, of equal width from the least to the largest; 0 for none.
        per_client: whether to keep every client's values, by name.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    enabled: bool = True
    mean: bool = True
    quantiles: Sequence[float] = (0.1, 0.5, 0.9)
    bins: int = 0
    per_client: bool = False
    max_weight: float | None = None

    def __post_init__(self) -> None:
        for name in ("enabled", "mean", "per_client"):
            if type(getattr(self, name)) is not bool:
                raise TypeError(f"Expected {name} as true or false, got {getattr(self, name)!r}.")
        if isinstance(self.quantiles, str) or not isinstance(self.quantiles, Sequence):
            raise TypeError(f"Expected quantiles as a list of shares, got {self.quantiles!r}.")
        for share in self.quantiles:
            check_share("quantiles", share)
        object.__setattr__(self, "quantiles", tuple(self.quantiles))
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(f"Expected different quantiles, ascending, got {self.quantiles}.")
        check_count("bins", self.bins, at_least=0)
        if self.max_weight is not None:
            check_number("max_weight", self.max_weight, above=0)


def summarize(reports: Iterable[Report], settings: MetricsSettings) -> dict[str, Any]:
    """Summarize the metrics of a round's clients, as JSON values.

    Args:
        reports: of all clients; those over no examples are left out.
        settings: metrics to keep.

    Returns:
        Empty without reports; else `num_examples`, as the clients reported them, and `values`, the
        means by metric; `quantiles`, by metric and share (`{"loss": {"0.5": 0.3}}`);
        `disagree`, the metrics whose mean disagrees with the median, if any; `not_finite`, how
        many clients' values quantiles and histograms left out, if any; and on request
        `histograms`, by metric (`{"loss": {"edges": [...], "counts": [...]}}`, one edge more than
        counts), and `clients`.
    """
    kept = [report for report in reports if report[1] > 0]
    if not kept:
        return {}
    found: dict[str, Any] = {"num_examples": sum(count for _, count, _ in kept), "values": {}}
    if not settings.enabled:
        return found
    if settings.mean:
        found["values"] = weighted_mean(
            ((count, values) for _, count, values in kept), settings.max_weight
        )
    ordered, not_finite = _by_metric(kept)
    found |= _distributions(ordered, settings)
    if not_finite:
        found["not_finite"] = not_finite
    if differ := [n for n, mean in found["values"].items() if disagrees(mean, ordered[n])]:
        found["disagree"] = differ
    if settings.per_client:
        found["clients"] = {
            client: {"num_examples": count, "values": dict(values)}
            for client, count, values in sorted(kept, key=lambda report: report[0])
        }
    return found


def disagrees(mean: float, ordered: Sequence[float]) -> bool:
    """Whether a mean disagrees with the median: it is outside the quartiles, or not finite.

    >>> disagrees(0.001, [2.0, 2.1, 2.2, 2.4, 2.5])
    True

    Args:
        mean: over clients.
        ordered: their finite values, ascending.
    """
    if len(ordered) < LEAST_CLIENTS:
        return False
    low, _, high = (quantile(ordered, share) for share in QUARTILES)
    slack = _ROUNDING * max(abs(low), abs(high))
    return not low - slack <= mean <= high + slack


def weighted_mean(
    reports: Iterable[tuple[int, Mapping[str, float]]], max_weight: float | None = None
) -> dict[str, float]:
    """Return the mean of each metric over the reports that have it, weighted by their examples.

    The sums are exact (`math.fsum` of products that are rounded once each), so any order of the
    reports gives the same bits. A metric with a value that is not finite, or with a sum past
    float64, has the mean NaN: one client's metric must not end a round.

    Args:
        reports: `(num_examples, {name: value})` of each client, num_examples >= 0.
        max_weight: limit of a client's weight, > 0; None for none.

    Returns:
        Each metric that a client reported over at least one example, sorted by name.

    Raises:
        ValueError: a number of examples is negative.
    """
    products: dict[str, list[float]] = {}
    weights: dict[str, list[float]] = {}
    for num_examples, values in reports:
        if num_examples < 0:
            raise ValueError(f"Expected num_examples >= 0, got {num_examples}.")
        weight = num_examples if max_weight is None else min(num_examples, max_weight)
        for name, value in values.items():
            products.setdefault(name, []).append(weight * value)
            weights.setdefault(name, []).append(weight)
    return {
        name: _sum(products[name]) / math.fsum(weights[name])
        for name in sorted(products)
        if any(weights[name])
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of a share, interpolated linearly between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0

    Args:
        ordered: ascending and finite, at least one.
        share: from 0 to 1.
    """
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high, part = min(low + 1, len(ordered) - 1), place - low
    between = ordered[low] * (1 - part) + ordered[high] * part
    return min(max(between, ordered[low]), ordered[high])  # rounding must not leave the neighbours


def histogram(ordered: Sequence[float], bins: int) -> tuple[list[float], list[int]]:
    """Edges of bins of equal width from the least value to the largest, and the count of each.

    A value on an edge belongs to the bin above it, the largest to the last bin. If all values are
    equal there is one bin.

    Args:
        ordered: ascending and finite, at least one.
        bins: at least 1.
    """
    low, high = ordered[0], ordered[-1]
    if low == high:
        return [low, high], [len(ordered)]
    # Not low + width · i: the difference of two large values may overflow.
    between = (low * (1 - i / bins) + high * (i / bins) for i in range(1, bins))
    inner = list(accumulate((min(edge, high) for edge in between), max, initial=low))[1:]
    counts = [0] * bins
    for value in ordered:
        counts[bisect_right(inner, value)] += 1
    return [low, *inner, high], counts


def _by_metric(kept: Sequence[Report]) -> tuple[dict[str, list[float]], dict[str, int]]:
    """The finite values of each metric, ascending, and how many are not finite if any are."""
    by_name: dict[str, list[float]] = {}
    for _, _, values in kept:
        for name, value in values.items():
            by_name.setdefault(name, []).append(value + 0.0)  # -0.0 and 0.0 sort as they came
    ordered = {name: sorted(filter(math.isfinite, by_name[name])) for name in sorted(by_name)}
    lacking = {name: len(by_name[name]) - len(ordered[name]) for name in ordered}
    return ordered, {name: count for name, count in lacking.items() if count}


def _distributions(
    ordered: Mapping[str, Sequence[float]], settings: MetricsSettings
) -> dict[str, Any]:
    """Quantiles and histograms of each metric over the clients that reported it."""
    shares = sorted({*settings.quantiles, *QUARTILES})
    found: dict[str, Any] = {
        "quantiles": {
            name: {f"{share:g}": quantile(values, share) for share in shares}
            for name, values in ordered.items()
            if values
        }
    }
    if settings.bins:
        histograms = {
            n: histogram(values, settings.bins) for n, values in ordered.items() if values
        }
        found["histograms"] = {
            name: {"edges": edges, "counts": counts} for name, (edges, counts) in histograms.items()
        }
    return found


def _sum(terms: list[float]) -> float:
    if not all(map(math.isfinite, terms)):
        return math.nan
    try:
        return math.fsum(sorted(terms))  # sorted, because overflow on the way depends on order
    except OverflowError:
        return math.nan
