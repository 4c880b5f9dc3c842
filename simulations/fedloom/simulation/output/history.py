"""The record of a simulation: its rounds and its result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedloom.server.engine import mode_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

INTERRUPTED = "interrupted"
"""Why a simulation stopped, after Ctrl-C or SIGTERM."""
BY_CALLER = "stopped by the caller"
"""Why a simulation stopped that `on_round` ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """One worker's share of a round.

    Attributes:
        worker: its name, such as `worker 1 (cpu)`.
        clients: trained by it.
        busy_s: seconds of training.
    """

    worker: str
    clients: int
    busy_s: float


_MEANS = ("num_examples", "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round, committed or abandoned.

    Attributes:
        round: its number, from 1; abandoned rounds count.
        trained: training rounds committed so far, including this one.
        kind: `train` or `evaluate`.
        state: `committed` or `abandoned`.
        reason: why it was abandoned, or notes: refused updates, limits of the aggregation.
        cohort: clients that were offered the task.
        accepted: updates in the result.
        staleness: mean of the updates' staleness; 0 in synchronous rounds.
        counts: members of the cohort by phase (reported, failed, lost, …).
        examples: that the accepted updates were trained on.
        training: weighted means of the clients' training metrics.
        evaluation: weighted means of what clients measured on their held-out examples.
        spread: quantiles, histograms and single clients' values of `training` and `evaluation`,
            as requested in [metrics]; see `fedloom.strategies.summarize`.
        epsilon: spent by the run, with this round; None without [privacy] and for abandoned
            rounds.
        underflow: share of values other than zero that a narrow sum rounded to zero; None for
            exact sums, with [privacy], and for abandoned rounds.
        test: metrics on the central test examples; empty if not evaluated.
        bytes_down: of the files that clients downloaded after they accepted the task.
        bytes_up: of the updates that reached the server, refused ones included.
        total_bytes: both ways since the first round; None if a resumed simulation began with a
            version that did not count them.
        train_passes: examples that the clients who accepted the task pass forward and backward
            through the model, with repetitions, by the costs of the task; None over the wire. A
            client's own code may do others.
        eval_passes: likewise of examples that go forward alone.
        virtual_s: the virtual clock at the end; None without device models.
        wall_s: seconds since this process began its first round.
        round_wall_s: seconds that the round took.
        clients_per_s: accepted updates per second of wall time, without central evaluation.
        shares: per worker.
    """

    round: int
    trained: int
    kind: str
    state: str
    reason: str = ""
    cohort: int = 0
    accepted: int = 0
    staleness: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: int = 0
    training: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    epsilon: float | None = None
    underflow: float | None = None
    test: Mapping[str, float] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    total_bytes: int | None = None
    train_passes: int | None = None
    eval_passes: int | None = None
    virtual_s: float | None = None
    wall_s: float = 0.0
    round_wall_s: float = 0.0
    clients_per_s: float = 0.0
    shares: tuple[WorkerShare, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """One client in one round, for `on_client`.

    Attributes:
        client: its name.
        round: number of the round.
        kind: `train` or `evaluate`.
        phase: the last one, such as `reported`, `refused` or `lost`.
        counted: whether its update, or its evaluation, is in the result.
        reason: why its update was refused; empty if it was not.
        staleness: rounds between its task and this round; 0 in synchronous rounds.
        num_examples: that it trained on.
        training: its metrics of the training; empty with [privacy], as on a server.
        evaluated: held-out examples that it evaluated on.
        evaluation: metrics on these; empty with [privacy].
        bytes_down: of the files that it downloaded in this round.
        bytes_up: of its update that reached the server in this round, counted or refused.
        offered_s: the virtual clock when its task was first offered in this round; None without
            devices, or if it did not accept one.
        accepted_s: when its update was accepted; None without devices, or if it was not.
        seconds: of wall time of its worker; 0 if it was not trained.
    """

    client: str
    round: int
    kind: str
    phase: str
    counted: bool
    reason: str = ""
    staleness: int = 0
    num_examples: int = 0
    training: Mapping[str, float] = field(default_factory=dict)
    evaluated: int = 0
    evaluation: Mapping[str, float] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    offered_s: float | None = None
    accepted_s: float | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def spread_of(
    training: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """A record's `spread`, from the output of `summarize`."""
    both = {"training": training, "evaluation": evaluation}
    spread = {
        source: {name: value for name, value in found.items() if name not in _MEANS}
        for source, found in both.items()
    }
    return {source: found for source, found in spread.items() if found}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Result:
    """A simulation that has ended.

    Attributes:
        records: every round, in order.
        params: the last model by name.
        digest: SHA-256 of the last model's file, as on a server.
        folder: of its output; None without output.
        engine: the kernel and workers, and why they were chosen.
        stopped: why it ended before its last round; empty if it did not.
        privacy: the privacy claim of a private run, and why it stopped if its budget was spent.
        best_model: the model that [best] marks, by `fedloom.server.planning.best.mark`; None
            without an evaluation.
        best_params: that model by name; None for none, and over the wire.
        enough: why it finished before its last round, as [best] asks; empty if it did not.
    """

    records: tuple[RoundRecord, ...]
    params: Mapping[str, NDArray[Any]]
    digest: str
    folder: Path | None
    engine: str
    stopped: str = ""
    privacy: tuple[str, ...] = ()
    best_model: Mapping[str, Any] | None = None
    best_params: Mapping[str, NDArray[Any]] | None = None
    enough: str = ""

    def best(self, metric: str = "accuracy") -> float | None:
        """The best finite value of a test metric, or None if it was never measured.

        Least for losses and errors, most for accuracies and for names that tell neither
        (`fedloom.server.engine.mode_of`).
        """
        values = [record.test[metric] for record in self.records if metric in record.test]
        best = min if mode_of(metric) == "min" else max
        return best(filter(isfinite, values), default=None)

    def frame(self) -> "DataFrame":
        """The rounds as a pandas DataFrame: one row a round, with the columns of metrics.csv.

        Raises:
            UsageError: pandas is not installed.
        """
        from fedloom.simulation.output.notebook import frame  # noqa: PLC0415 - it imports this

        return frame(self.records)

    def plot(self, metric: str | None = None) -> "Figure":
        """A metric by round as a matplotlib figure, which notebooks show.

        Args:
            metric: default: the one that best shows the quality of the model.

        Raises:
            UsageError: the metric was never measured.
        """
        from fedloom.simulation.output.notebook import plot  # noqa: PLC0415 - it imports this

        return plot(self.records, metric)

    def __repr__(self) -> str:
        from fedloom.simulation.output.notebook import one_line  # noqa: PLC0415 - it imports this

        return one_line(self)

    def _repr_html_(self) -> str:
        from fedloom.simulation.output.notebook import html  # noqa: PLC0415 - it imports this

        return html(self)
