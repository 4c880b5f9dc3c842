"""Sums, extremes and counts of what clients measured, which add up over groups of clients.

Invariant: how clients are grouped changes nothing: the results are those of `metrics.Summary`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import add
from typing import Any

from fedloom.strategies.metrics import MetricsSettings, counts_between, exact_sum, fixed_histogram


@dataclass(frozen=True, slots=True)
class SummedMetrics:
    """The exact sums of some clients' metrics, which add up over groups of clients.

    Attributes:
        num_examples: of all clients.
        values: by metric, numbers whose sum is that of weight times value, and likewise of the
            weights.
        extremes: by metric, the least and the largest value of a client; empty if not wanted.
        counts: by metric, numbers of clients between given edges; see `counts_between`.
    """

    num_examples: int = 0
    values: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    extremes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def means(self) -> dict[str, float]:
        """The weighted mean of each metric."""
        return {
            name: exact_sum(list(products)) / math.fsum(weights)
            for name, (products, weights) in sorted(self.values.items())
        }

    def summary(self, settings: MetricsSettings) -> dict[str, Any]:
        """As `Summary.values`, of what is known: means, extremes as quantiles, given histograms."""
        if not self.num_examples:
            return {}
        found: dict[str, Any] = {"num_examples": self.num_examples, "values": {}}
        if not settings.enabled:
            return found
        if settings.mean:
            found["values"] = self.means()
        if shares := extremes_of(settings):
            found["quantiles"] = {
                name: {f"{share:g}": both[round(share)] for share in shares}
                for name, both in sorted(self.extremes.items())
            }
        if settings.edges:
            found["histograms"] = {
                name: fixed_histogram(settings.edges[name], counts)
                for name, counts in sorted(self.counts.items())
            }
        return found


def extremes_of(settings: MetricsSettings) -> list[float]:
    """The wanted quantiles that are extremes: 0 and 1."""
    return [share for share in settings.quantiles if share in (0.0, 1.0)]


def summed(every: Iterable[SummedMetrics]) -> SummedMetrics:
    """Add sums of metrics up; the means of the result do not depend on how clients are grouped.

    >>> one = SummedMetrics(1, {"loss": ([0.5], [1.0])})
    >>> three = SummedMetrics(3, {"loss": ([3.0], [3.0])})
    >>> summed([one, three]).means()
    {'loss': 0.875}
    """
    num_examples = 0
    found: dict[str, tuple[list[float], list[float]]] = {}
    extremes: dict[str, tuple[float, float]] = {}
    counts: dict[str, tuple[int, ...]] = {}
    for sums in every:
        num_examples += sums.num_examples
        for name, (products, weights) in sums.values.items():
            mine = found.setdefault(name, ([], []))
            mine[0].extend(products)
            mine[1].extend(weights)
        for name, (low, high) in sums.extremes.items():
            known = extremes.get(name, (low, high))
            extremes[name] = min(low, known[0]), max(high, known[1])
        for name, more in sums.counts.items():
            before = counts.get(name, [0] * len(more))
            counts[name] = tuple(map(add, before, more))
    values = {name: (_exact(p), _exact(w)) for name, (p, w) in sorted(found.items())}
    return SummedMetrics(num_examples, values, extremes, counts)


def metric_sums(
    reports: Iterable[tuple[int, Mapping[str, float]]], settings: MetricsSettings
) -> SummedMetrics:
    """Return the sums of finite metrics of clients; their means are those of `weighted_mean`.

    Args:
        reports: `(num_examples, {name: value})` of each client, num_examples >= 0.
        settings: of the metrics.
    """
    wants_extremes, limit = bool(extremes_of(settings)), settings.max_weight

    def each() -> Iterable[SummedMetrics]:
        for num_examples, values in reports:
            weight = num_examples if limit is None else min(num_examples, limit)
            counted = {name: value + 0.0 for name, value in values.items()} if weight else {}
            binned = counted.keys() & settings.edges.keys()
            yield SummedMetrics(
                num_examples,
                {n: ([weight * v], [float(weight)]) for n, v in counted.items()},
                {n: (v, v) for n, v in counted.items()} if wants_extremes else {},
                {n: counts_between([counted[n]], settings.edges[n]) for n in binned},
            )

    return summed(each())


def _exact(terms: Sequence[float]) -> tuple[float, ...]:
    return exact_terms(sum(map(Fraction, terms), Fraction()))


def exact_terms(rest: Fraction) -> tuple[float, ...]:
    """Return a few numbers with this exact sum, the same for every sum.

    Args:
        rest: a sum of float64 numbers.
    """
    found = []
    while rest:
        found.append(float(rest))
        rest -= Fraction(found[-1])
    return tuple(found) or (0.0,)
