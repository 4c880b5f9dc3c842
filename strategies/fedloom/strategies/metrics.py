"""Metrics of a round, over the clients that reported: means, quantiles, histograms.

Results do not depend on the order of reports. A non-finite metric never ends a round: its mean is
NaN, and quantiles and histograms leave it out and count it.

Source for quantiles: Hyndman and Fan 1996, "Sample Quantiles in Statistical Packages", type 7.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from fedloom.strategies.checks import check_count, check_share

Report: TypeAlias = tuple[str, int, Mapping[str, float]]
"""(client, num_examples, {metric: value})."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The metrics that are kept of a round.

    Attributes:
        enabled: False keeps only the number of examples.
        mean: means weighted by examples.
        quantiles: over clients, each counting once; shares from 0 to 1, ascending.
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


def summarize(reports: Iterable[Report], settings: MetricsSettings) -> dict[str, Any]:
    """Summarize the metrics of a round's clients, as JSON values.

    Args:
        reports: of all clients; those over no examples are left out.
        settings: metrics to keep.

    Returns:
        Empty without reports; else `num_examples` and `values`, the means by metric; and on request
        `quantiles`, by metric and share (`{"loss": {"0.5": 0.3}}`), `histograms`, by
        metric (`{"loss": {"edges": [...], "counts": [...]}}`, one edge more than counts),
        `not_finite`, how many clients' values those two left out, and `clients`.
    """
    kept = [report for report in reports if report[1] > 0]
    if not kept:
        return {}
    found: dict[str, Any] = {"num_examples": sum(count for _, count, _ in kept), "values": {}}
    if not settings.enabled:
        return found
    if settings.mean:
        found["values"] = weighted_mean((count, values) for _, count, values in kept)
    if settings.quantiles or settings.bins:
        found |= _distributions(kept, settings)
    if settings.per_client:
        found["clients"] = {
            client: {"num_examples": count, "values": dict(values)}
            for client, count, values in sorted(kept, key=lambda report: report[0])
        }
    return found


def weighted_mean(reports: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean of each metric over the reports that have it, weighted by their examples.

    The sums are exact (`math.fsum` of products that are rounded once each), so any order of the
    reports gives the same bits. A metric with a value that is not finite, or with a sum past
    float64, has the mean NaN: one client's metric must not end a round.

    Args:
        reports: `(num_examples, {name: value})` of each client, num_examples >= 0.

    Returns:
        Each metric that a client reported over at least one example, sorted by name.

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


def _distributions(kept: Sequence[Report], settings: MetricsSettings) -> dict[str, Any]:
    """Quantiles and histograms of each metric over the clients that reported it."""
    by_name: dict[str, list[float]] = {}
    for _, _, values in kept:
        for name, value in values.items():
            by_name.setdefault(name, []).append(value + 0.0)  # -0.0 and 0.0 sort as they came
    ordered = {name: sorted(filter(math.isfinite, by_name[name])) for name in sorted(by_name)}
    lacking = {name: len(by_name[name]) - len(ordered[name]) for name in ordered}
    found: dict[str, Any] = {}
    if settings.quantiles:
        found["quantiles"] = {
            name: {f"{share:g}": quantile(values, share) for share in settings.quantiles}
            for name, values in ordered.items()
            if values
        }
    if settings.bins:
        histograms = {
            n: histogram(values, settings.bins) for n, values in ordered.items() if values
        }
        found["histograms"] = {
            name: {"edges": edges, "counts": counts} for name, (edges, counts) in histograms.items()
        }
    if any(lacking.values()):
        found["not_finite"] = {name: count for name, count in lacking.items() if count}
    return found


def _sum(terms: list[float]) -> float:
    if not all(map(math.isfinite, terms)):
        return math.nan
    try:
        return math.fsum(sorted(terms))  # sorted, because overflow on the way depends on order
    except OverflowError:
        return math.nan
