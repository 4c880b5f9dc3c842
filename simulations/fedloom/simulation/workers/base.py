"""What a crew of workers does for a round, whatever its workers are.

Invariants: the sum is exact, so it is the same for any number of workers and any placement; every
job is reported once; a refused update leaves no trace in the sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output.history import WorkerShare
from fedloom.strategies import Partial

Progress = Callable[[int], None]
"""Called with how many jobs are done."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one job.

    Attributes:
        client: its index in the population.
        training: over its training.
        evaluation: on its held-out examples.
        seconds: of wall time that it took its worker.
        refused: the code of the refusal, or empty.
        reason: why it was refused.
        has_tensors: whether its update was accepted and carries tensors.
        header: of the update, where it was written to a file.
    """

    client: int
    training: Measurement
    evaluation: Measurement
    seconds: float
    refused: str = ""
    reason: str = ""
    has_tensors: bool = False
    header: bytes = b""


@dataclass(slots=True)
class Yield:
    """What a round's jobs gave.

    Attributes:
        reports: one for each job, in no particular order.
        shares: what each worker did.
    """

    reports: list[Report] = field(default_factory=list)
    shares: tuple[WorkerShare, ...] = ()


class WorkerGroup(Protocol):
    """Workers that live as long as a simulation."""

    @property
    def size(self) -> int:
        """How many workers there are."""

    def train(
        self,
        params: Params,
        task: RoundTask,
        groups: Sequence[Sequence[ClientJob]],
        partial: Partial,
        progress: Progress,
    ) -> Yield:
        """Do a round's jobs and add what is accepted to `partial`.

        Args:
            params: the round's model.
            task: what the round asks.
            groups: jobs that are done together, the longest first.
            partial: the round's sum so far.
            progress: told how many jobs are done, now and then.
        """

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the population's first `num_examples` test examples."""

    def close(self) -> None:
        """Let the workers go; twice is once."""
