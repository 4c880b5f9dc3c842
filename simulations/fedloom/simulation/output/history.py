"""The record of a simulation: its rounds and its result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

INTERRUPTED = "interrupted"
"""Why a simulation stopped, after Ctrl-C or SIGTERM."""


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
    virtual_s: float | None = None
    wall_s: float = 0.0
    round_wall_s: float = 0.0
    clients_per_s: float = 0.0
    shares: tuple[WorkerShare, ...] = ()

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    """

    records: tuple[RoundRecord, ...]
    params: Mapping[str, NDArray[Any]]
    digest: str
    folder: Path | None
    engine: str
    stopped: str = ""
    privacy: tuple[str, ...] = ()

    def best(self, metric: str = "accuracy") -> float | None:
        """The highest finite value of a test metric, or None if it was never measured."""
        values = [record.test[metric] for record in self.records if metric in record.test]
        return max(filter(isfinite, values), default=None)
