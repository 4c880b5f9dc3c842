"""The reports of a round's clients, which are the input of `advance`, and their metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedloom.server.engine import RoundKind
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.spec import RunSpec
from fedloom.strategies import Partial, Updates
from fedloom.strategies.exact.lazy_arrays import Values
from fedloom.strategies.masking.words import MaskedWords
from fedloom.strategies.metrics import Summary
from fedloom.strategies.summed_metrics import SummedMetrics, metric_sums, summed

_NOTHING: Mapping[str, Any] = {}


class ClientMetrics(NamedTuple):
    """What a client measured: a number of examples, and values by metric.

    Of a site, the values are the means over its devices; the others are those of `SummedMetrics`.
    This and what follows are named tuples: they are made for every client, and making a frozen
    dataclass takes four times as long.
    """

    num_examples: int = 0
    values: Mapping[str, float] = _NOTHING
    sums: Mapping[str, tuple[Sequence[float], Sequence[float]]] = _NOTHING
    extremes: Mapping[str, tuple[float, float]] = _NOTHING
    counts: Mapping[str, Sequence[int]] = _NOTHING


class ClientReport(NamedTuple):
    """An accepted update, without its tensors and metrics.

    Attributes:
        client: its name.
        asked_in: number of the round of its task; possibly an earlier one in buffered runs.
        has_tensors: whether it carries tensors.
    """

    client: str
    asked_in: int
    has_tensors: bool = True


class ReportedMetrics(NamedTuple):
    """The metrics of an accepted update.

    Attributes:
        client: its name.
        training: measured in training.
        evaluation: measured on held-out examples.
    """

    client: str
    training: ClientMetrics = ClientMetrics()
    evaluation: ClientMetrics = ClientMetrics()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundResult:
    """The accepted updates of a round that closes.

    Attributes:
        number: of the round.
        kind: training or evaluation.
        reports: one for each accepted update.
        total: their exact sum; `advance` consumes it.
        metrics: of each accepted update in any order; read once, one by one.
        words: the sums of the masked words of all accepted updates, which replace `metrics` in a
            masked run; None in others.
        updates: each of them, for aggregations that need each; the sum is then empty. For rules
            over sessions, the mean of each session.
        keep: stores a new tensor that is too large for memory, and returns it from there; default:
            in memory.
    """

    number: int
    kind: RoundKind
    reports: Sequence[ClientReport]
    total: Partial
    metrics: Iterable[ReportedMetrics] = ()
    words: Mapping[str, int] | None = None
    updates: Updates | None = None
    keep: Callable[[Values], Values] = lambda values: values


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMetrics:
    """The metrics of a committed round.

    Attributes:
        training: summary of the clients' training metrics; see `fedloom.strategies.summarize`.
        evaluation: likewise of their evaluation.
        privacy: epsilon and delta spent so far; None without [privacy].
        underflow: share of values other than zero that a narrow sum rounded to zero; None for
            exact sums and with [privacy].
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, float] | None = None
    underflow: float | None = None


def measure(setup: RunSetup, result: RoundResult, trained: int) -> RoundMetrics:
    """Summarize a committed round, after `trained` committed training rounds.

    A private run reports its spent budget only: no noise protects what clients measured. Of a
    masked one, only means are known.
    """
    if setup.privacy is not None:
        return RoundMetrics(privacy=setup.privacy.spent(trained, result.number))
    words = setup.spec.masked_words()
    if words is not None:
        sums = _words(setup.spec, words, result)
        return RoundMetrics(
            training=words.means("training", sums), evaluation=words.means("evaluation", sums)
        )
    settings = setup.spec.metrics_settings()
    if setup.spec.sites:
        every = list(result.metrics)
        return RoundMetrics(
            training=added_up(setup.spec, (m.training for m in every)).summary(settings),
            evaluation=added_up(setup.spec, (m.evaluation for m in every)).summary(settings),
        )
    training, evaluation = Summary(settings), Summary(settings)
    for report in result.metrics:
        training.add(report.client, report.training.num_examples, report.training.values)
        evaluation.add(report.client, report.evaluation.num_examples, report.evaluation.values)
    return RoundMetrics(training=training.values(), evaluation=evaluation.values())


def _words(spec: RunSpec, words: MaskedWords, result: RoundResult) -> Mapping[str, int]:
    """The sums of masked words, of which sites send metrics."""
    if not spec.sites:
        return result.words or {}
    every = list(result.metrics)
    training = added_up(spec, (each.training for each in every))
    evaluation = added_up(spec, (each.evaluation for each in every))
    return words.words_of("training", training) | words.words_of("evaluation", evaluation)


def added_up(spec: RunSpec, every: Iterable[ClientMetrics]) -> SummedMetrics:
    """The exact sums of what the clients of a run measured, which may be sites."""
    if spec.sites:
        return summed(
            SummedMetrics(each.num_examples, each.sums, each.extremes, each.counts)
            for each in every
        )
    return metric_sums(
        ((each.num_examples, each.values) for each in every), spec.metrics_settings()
    )


def last_counted(before: Mapping[str, int], reports: Sequence[ClientReport]) -> dict[str, int]:
    """For each client, the round of the task whose update with tensors last counted.

    A client's memory belongs to that round. `Ledger.last_counted` is the same rule in SQL.
    """
    return {**before, **{r.client: r.asked_in for r in reports if r.has_tensors}}
