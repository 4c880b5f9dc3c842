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
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, TypeAlias

from fedloom.strategies.checks import check_count, check_number, check_share

Report: TypeAlias = tuple[str, int, Mapping[str, float]]
"""(client, num_examples, {metric: value})."""

QUARTILES = (0.25, 0.5, 0.75)
"""Quantiles that are always kept: the median and the interquartile range."""
LEAST_CLIENTS = 3
"""With fewer, no client is outside the others."""
MAX_EDGES = 1024
"""Most edges of all given histograms: their counts are in the header of a site's sum."""
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
        edges: by metric, the edges of a histogram over clients in place of `bins`: at least two,
            ascending, and at most `MAX_EDGES` in all.

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
    edges: Mapping[str, Sequence[float]] = field(default_factory=dict)

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
        object.__setattr__(self, "edges", _checked_edges(self.edges))
        if self.max_weight is not None:
            check_number("max_weight", self.max_weight, above=0)


def _checked_edges(given: Any) -> dict[str, tuple[float, ...]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"Expected edges by metric, such as {{loss = [0, 1, 2]}}, got {given!r}.")
    for name, edges in given.items():
        if isinstance(edges, str) or not isinstance(edges, Sequence):
            raise TypeError(f"Expected edges.{name} as a list of numbers, got {edges!r}.")
        for edge in edges:
            check_number(f"edges.{name}", edge)
        ascending = all(a < b for a, b in pairwise(edges))
        if not (len(edges) >= 2 and ascending):
            raise ValueError(
                f"Expected edges.{name} as two or more different numbers, ascending, got "
                f"{list(edges)[:8]}."
            )
    if (total := sum(map(len, given.values()))) > MAX_EDGES:
        raise ValueError(f"Expected at most {MAX_EDGES} edges of all metrics, got {total}.")
    return {name: tuple(map(float, edges)) for name, edges in given.items()}


def summarize(reports: Iterable[Report], settings: MetricsSettings) -> dict[str, Any]:
    """Summarize the metrics of a round's clients, as JSON values; see `Summary.values`.

    Args:
        reports: of all clients; those over no examples are left out.
        settings: metrics to keep.
    """
    summary = Summary(settings)
    for report in reports:
        summary.add(*report)
    return summary.values()


class Summary:
    """The metrics of a round, collected client by client.

    A value takes 16 bytes until the end of the round: 1.3 MB for 10,000 clients with eight
    metrics. Exact quantiles in one pass need every value (Munro and Paterson 1980, "Selection and
    sorting with limited storage").

    Args:
        settings: metrics to keep.
    """

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._num_examples = 0
        self._columns = _Columns(settings.max_weight)
        self._clients: dict[str, dict[str, Any]] = {}

    def add(self, client: str, num_examples: int, values: Mapping[str, float]) -> None:
        """Add a client's report; one over no examples is left out."""
        if num_examples <= 0:
            return
        self._num_examples += num_examples
        if self._settings.enabled:
            self._columns.add(num_examples, values)
            if self._settings.per_client:
                self._clients[client] = {"num_examples": num_examples, "values": dict(values)}

    def values(self) -> dict[str, Any]:
        """The summary of all reports, as JSON values.

        Returns:
            Empty without reports; else `num_examples`, as the clients reported them, and `values`,
            the means by metric; `quantiles`, by metric and share (`{"loss": {"0.5": 0.3}}`);
            `disagree`, the metrics whose mean disagrees with the median, if any; `not_finite`, how
            many clients' values quantiles and histograms left out, if any; and on request
            `histograms`, by metric (`{"loss": {"edges": [...], "counts": [...]}}`, one edge more
            than counts; with given edges also how many are `below` and `above`), and `clients`.
        """
        if not self._num_examples:
            return {}
        found: dict[str, Any] = {"num_examples": self._num_examples, "values": {}}
        if not self._settings.enabled:
            return found
        if self._settings.mean:
            found["values"] = self._columns.means()
        found |= self._distributions(found["values"])
        if self._settings.per_client:
            found["clients"] = dict(sorted(self._clients.items()))
        return found

    def _distributions(self, means: Mapping[str, float]) -> dict[str, Any]:
        """Quantiles and histograms of each metric over the clients that reported it."""
        shares = sorted({*self._settings.quantiles, *QUARTILES})
        quantiles: dict[str, Any] = {}
        histograms: dict[str, Any] = {}
        not_finite: dict[str, int] = {}
        differ: list[str] = []
        for name in self._columns.names():
            every = self._columns.of(name)
            ordered = sorted(value + 0.0 for value in every if math.isfinite(value))  # no -0.0
            if len(ordered) < len(every):
                not_finite[name] = len(every) - len(ordered)
            if name in means and disagrees(means[name], ordered):
                differ.append(name)
            if not ordered:
                continue
            quantiles[name] = {f"{share:g}": quantile(ordered, share) for share in shares}
            if given := self._settings.edges.get(name):
                histograms[name] = fixed_histogram(given, counts_between(ordered, given))
            elif self._settings.bins:
                edges, counts = histogram(ordered, self._settings.bins)
                histograms[name] = {"edges": edges, "counts": counts}
        found: dict[str, Any] = {"quantiles": quantiles}
        if self._settings.bins or self._settings.edges:
            found["histograms"] = histograms
        if not_finite:
            found["not_finite"] = not_finite
        if differ:
            found["disagree"] = differ
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
    columns = _Columns(max_weight)
    for num_examples, values in reports:
        if num_examples < 0:
            raise ValueError(f"Expected num_examples >= 0, got {num_examples}.")
        columns.add(num_examples, values)
    return columns.means()


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


def counts_between(values: Iterable[float], edges: Sequence[float]) -> list[int]:
    """Numbers of finite values below the first edge, in each bin, and above the last edge.

    A value on an edge belongs to the bin above it, on the last edge to the last bin.

    >>> counts_between([-1.0, 0.0, 0.5, 1.0, 2.0], [0.0, 1.0, 2.0])
    [1, 2, 2, 0]
    """
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[len(edges) - 1 if value == edges[-1] else bisect_right(edges, value)] += 1
    return counts


def fixed_histogram(edges: Sequence[float], counts: Sequence[int]) -> dict[str, Any]:
    """The histogram of what `counts_between` returned, as JSON values."""
    below, *inner, above = counts
    return {"edges": list(edges), "counts": inner, "below": below, "above": above}


class _Columns:
    """The values of each metric and their weights, in arrays of float64.

    Args:
        max_weight: limit of a client's weight; None for none.
    """

    def __init__(self, max_weight: float | None) -> None:
        self._max_weight = max_weight
        self._columns: dict[str, tuple[array[float], array[float]]] = {}

    def add(self, num_examples: int, values: Mapping[str, float]) -> None:
        """Add a client's values."""
        limit = self._max_weight
        weight = num_examples if limit is None else min(num_examples, limit)
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = (array("d"), array("d"))
            column[0].append(value)
            column[1].append(weight)

    def names(self) -> list[str]:
        """The metrics, sorted."""
        return sorted(self._columns)

    def of(self, name: str) -> "array[float]":
        """The values of a metric, in the order in which they came."""
        return self._columns[name][0]

    def means(self) -> dict[str, float]:
        """The weighted mean of each metric that has a weight."""
        return {
            name: _mean(*self._columns[name])
            for name in self.names()
            if any(self._columns[name][1])
        }


def _mean(values: Iterable[float], weights: Sequence[float]) -> float:
    return exact_sum(list(map(mul, weights, values))) / math.fsum(weights)


def exact_sum(terms: list[float]) -> float:
    """The sum, rounded once; NaN if a term is not finite, or the sum is past float64."""
    if not all(map(math.isfinite, terms)):
        return math.nan
    try:
        return math.fsum(sorted(terms))  # sorted, because overflow on the way depends on order
    except OverflowError:
        return math.nan
