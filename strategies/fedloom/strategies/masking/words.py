"""The 64-bit words of a masked update: its weight, its numbers of examples, its metrics.

They are added modulo 2^64, so a server learns only their sums. A metric travels as its mean times
its examples, beside its own number of examples: a client that does not measure it adds zeros.

Legend: one unit of a weight or of a metric is 2^-20; examples are whole numbers.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from fedloom.strategies.exact.fixed_point import MASKED_WEIGHT_BITS, masked_weight
from fedloom.strategies.summed_metrics import SummedMetrics, exact_terms

WEIGHT: Final = "weight"
KINDS: Final = ("training", "evaluation")
_SCALE: Final = 1 << MASKED_WEIGHT_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedWords:
    """The words of the updates of a round, the same for all its clients.

    Attributes:
        weighted: whether the weight is one of them; not with uniform weights.
        kinds: of metrics: `training`, `evaluation` or both.
        bounds: metric → bound of its magnitude.
        max_examples: largest number of examples that counts for a mean; a whole number.
    """

    weighted: bool
    kinds: tuple[str, ...]
    bounds: Mapping[str, float]
    max_examples: int

    @classmethod
    def of_round(
        cls,
        bounds: Mapping[str, float],
        *,
        weighting: str,
        max_examples: float,
        trains: bool,
        evaluates: bool,
        private: bool = False,
    ) -> "MaskedWords":
        """Return the words of the updates of a round.

        Args:
            bounds: metric → bound of its magnitude.
            weighting: of the run.
            max_examples: largest number of examples that counts for a metric.
            trains: whether clients train.
            evaluates: whether they evaluate.
            private: whether the run has [privacy]: no noise protects numbers of examples or
                metrics, so none are sent.
        """
        if private:
            trains = evaluates = False
        done = dict(zip(KINDS, (trains, evaluates), strict=True))
        return cls(
            weighted=trains and weighting != "uniform",  # weights of private runs are uniform
            kinds=tuple(kind for kind, there in done.items() if there),
            bounds={} if private else bounds,
            max_examples=max(1, int(max_examples)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The words in their order in a body."""
        found = [WEIGHT] if self.weighted else []
        for kind in self.kinds:
            found.append(_examples(kind))
            for metric in sorted(self.bounds):
                found += [_examples(f"{kind}.{metric}"), f"{kind}.{metric}"]
        return tuple(found)

    def of(
        self, weight: float, reports: Mapping[str, tuple[int, Mapping[str, float]]]
    ) -> dict[str, int]:
        """Return a client's words by name.

        Args:
            weight: of its update; 0 if it sends no tensors.
            reports: kind → number of examples and metrics, which are finite.

        Raises:
            ValueError: the weight is below 2^-20, or a metric is not a number.
        """
        found = dict.fromkeys(self.names, 0)
        if self.weighted and weight:
            found[WEIGHT] = round(math.ldexp(masked_weight(weight), MASKED_WEIGHT_BITS))
        for kind in self.kinds:
            num_examples, metrics = reports.get(kind, (0, {}))
            counted = min(max(num_examples, 0), self.max_examples)
            found[_examples(kind)] = counted
            for metric in self.bounds.keys() & metrics.keys():
                found[_examples(f"{kind}.{metric}")] = counted
                found[f"{kind}.{metric}"] = self._word(metric, metrics[metric], counted)
        return found

    def _word(self, metric: str, value: float, examples: int) -> int:
        """A metric times its examples."""
        bound = self.bounds[metric]
        clamped = Fraction(min(max(value, -bound), bound))
        return round(clamped * examples * _SCALE)

    def added(self, words: Iterable[Mapping[str, int]]) -> dict[str, int]:
        """Return the sums of words, modulo 2^64 and with a sign."""
        total = dict.fromkeys(self.names, 0)
        for each in words:
            for name in total:
                total[name] += each[name]
        return {name: (sum_ + 2**63) % 2**64 - 2**63 for name, sum_ in total.items()}

    def means(self, kind: str, sums: Mapping[str, int]) -> dict[str, Any]:
        """Return what a round shows of a kind's metrics: `num_examples`, and `values` by metric.

        Empty if no client reported any, as `fedloom.strategies.summarize` does.
        """
        if not sums.get(_examples(kind)):
            return {}
        values = {
            metric: sums[f"{kind}.{metric}"] / _SCALE / examples
            for metric in sorted(self.bounds)
            if (examples := sums[_examples(f"{kind}.{metric}")])
        }
        return {"num_examples": sums[_examples(kind)], "values": values}

    def summed(self, kind: str, sums: Mapping[str, int]) -> SummedMetrics:
        """Return sums of words of a kind as those of metrics, which say exactly the same."""
        values = {
            metric: (
                exact_terms(Fraction(sums[f"{kind}.{metric}"], _SCALE)),
                exact_terms(Fraction(examples)),
            )
            for metric in sorted(self.bounds)
            if kind in self.kinds and (examples := sums[_examples(f"{kind}.{metric}")])
        }
        return SummedMetrics(sums.get(_examples(kind), 0), values)

    def words_of(self, kind: str, metrics: SummedMetrics) -> dict[str, int]:
        """Return the sums of words that `summed` was made from, those of other metrics left out."""
        found = {_examples(kind): metrics.num_examples}
        for metric in self.bounds:
            products, examples = metrics.values.get(metric, ((), ()))
            found[_examples(f"{kind}.{metric}")] = round(_total(examples))
            found[f"{kind}.{metric}"] = round(_total(products) * _SCALE)
        return found


def _total(terms: Iterable[float]) -> Fraction:
    return sum(map(Fraction, terms), Fraction())


def _examples(of: str) -> str:
    return f"{of}.examples"
