"""The interface of a group of workers, in this process, in others or on a cluster.

Invariants: the sum is exact, so it is equal for any number of workers and any order; every job is
reported once; a refused update adds nothing to the sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output.history import WorkerShare
from fedloom.strategies import Partial

Progress = Callable[[int], None]
"""Called with the number of jobs done."""


@dataclass(frozen=True, slots=True)
class RoundWork:
    """The jobs of a round.

    Attributes:
        params: the round's model.
        task: the round's task.
        groups: jobs that are done together, the longest first.
        partial: the round's sum so far.
        progress: called repeatedly.
    """

    params: Params
    task: RoundTask
    groups: Sequence[Sequence[ClientJob]]
    partial: Partial
    progress: Progress


class Report(NamedTuple):
    """The result of one job.

    Attributes:
        client: its index in the population.
        training: metrics of its training.
        evaluation: metrics on its held-out examples.
        seconds: wall time of its worker.
        refused: the code of the refusal; empty if accepted.
        reason: why it was refused.
        has_tensors: whether its update was accepted and has tensors.
        header: of the update, if it was written to a file.
        bytes_up: of the update's body, if the settings do not determine them; None if they do, or
            if it was refused before it was encoded.
        reached: whether a refused update's body reached the server: its header was valid.
        weight: of an accepted update with tensors; 0 without.
    """

    client: int
    training: Measurement
    evaluation: Measurement
    seconds: float
    refused: str = ""
    reason: str = ""
    has_tensors: bool = False
    header: bytes = b""
    bytes_up: int | None = None
    reached: bool = False
    weight: float = 0.0


@dataclass(slots=True)
class Yield:
    """The results of a round's jobs.

    Attributes:
        reports: one for each job, in no particular order.
        shares: of the work, by worker.
    """

    reports: list[Report] = field(default_factory=list)
    shares: tuple[WorkerShare, ...] = ()


class WorkerGroup(Protocol):
    """Workers that live as long as a simulation."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def train(self, work: RoundWork) -> Yield:
        """Do a round's jobs and add accepted updates to its sum."""

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the population's first `num_examples` test examples."""

    def close(self) -> None:
        """Stop the workers; may be called more than once."""
