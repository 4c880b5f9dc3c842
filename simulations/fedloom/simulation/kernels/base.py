"""What every kernel does: from a model and some clients to their updates, one after another.

Invariant: an update depends on the model, the task, the client's data and its seed; never on the
other clients of the call, their order, or the worker.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from fedloom.client.api import Kind, Scalar, Task, Weighting
from fedloom.client.training.client_rule import RuleContext
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.updates.compression import Scheme
from fedloom.protocol.updates.message import TensorPart
from fedloom.simulation.training.attacks import Attack
from fedloom.strategies import ClientRule, Personal, RoundSettings

Params: TypeAlias = Mapping[str, NDArray[Any]]


def nothing_local(_: "ClientJob") -> RuleContext:
    """For rules that receive and remember nothing."""
    return RuleContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """What a round asks of all its clients alike.

    Attributes:
        run: id of the run.
        round: number of the round in it, from 1.
        settings: epochs or steps, batch size (0: all in one batch) and learning rate.
        rule: changes local gradients.
        config: what the experiment's author passes to the client's code.
        weighting: where an update's weight comes from.
        evaluate: whether clients evaluate on their held-out examples before they train.
        train: whether they train.
        factor: that deltas are multiplied by where they count, from 0 to 1; weights are not.
        memory: folder of what client rules remember; empty for none.
        local: gives what the rule has for a job.
        compression: how updates are encoded.
        spool: folder that updates are written to; empty where they are added up at once.
        attack: what liars do to their updates; None where nobody lies.
        attackers: who lies, as indices in the population.
        personal: what stays with each client.
        guard: what is done to updates for privacy; None for nothing.
    """

    run: str
    round: int
    settings: RoundSettings
    rule: ClientRule
    config: Mapping[str, Scalar] = field(default_factory=dict)
    weighting: Weighting = Weighting.EXAMPLES
    evaluate: bool = False
    train: bool = True
    factor: float = 1.0
    memory: str = ""
    local: Callable[["ClientJob"], RuleContext] = nothing_local
    guard: Guard | None = None
    compression: Scheme | None = None
    spool: str = ""
    attack: Attack | None = None
    attackers: frozenset[int] = frozenset()
    personal: Personal = field(default_factory=Personal)

    @property
    def remembers(self) -> bool:
        """Whether clients keep something from round to round."""
        of_codec = self.compression is not None and self.compression.remembers
        return of_codec or bool(self.rule.remembers) or self.personal.remembers


@dataclass(frozen=True, slots=True)
class ClientJob:
    """One client's share of a round.

    Attributes:
        client: its index in the population.
        seed: for its randomness in this round, from 0 to 2^63 − 1.
        memory_round: the last committed round with an update of it; 0 for none.
        most_steps: that its device takes within `time_budget_s`; 0 for no such limit.
    """

    client: int
    seed: int
    memory_round: int = 0
    most_steps: int = 0


def asked_of(task: RoundTask, job: ClientJob, client: str, local: RuleContext) -> Task:
    """What the deployed client of this name would be asked."""
    return Task(
        run=task.run,
        round=task.round,
        client=client,
        kind=Kind.TRAIN if task.train else Kind.EVALUATE,
        settings=task.settings,
        rule=task.rule,
        config=task.config,
        seed=job.seed,
        deadline_s=math.inf,
        weighting=task.weighting,
        local=local,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Means over examples.

    Attributes:
        num_examples: how many.
        metrics: `loss`, and `accuracy` where targets are class numbers.
    """

    num_examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcome:
    """What one client did.

    Attributes:
        client: its index in the population.
        parts: trained values less received ones; they last until the next outcome is asked for.
        training: over its training, as the model changed.
        evaluation: of the received model on its held-out examples.
        weight: where the run weights by client.
        local: what its rule had, and what the training told it.
    """

    client: int
    parts: Sequence[TensorPart] = ()
    training: Measurement = Measurement()
    evaluation: Measurement = Measurement()
    weight: float | None = None
    local: RuleContext = field(default_factory=RuleContext)


class Kernel(Protocol):
    """Trains clients in one worker, on one device."""

    def work(
        self, params: Params, task: RoundTask, jobs: Sequence[ClientJob]
    ) -> Iterator[ClientOutcome]:
        """Do the jobs, in any order.

        Args:
            params: the round's model by name; read-only, unchanged until the last outcome.
            task: what the round asks.
            jobs: whom to train.

        Raises:
            UsageError: the kernel cannot carry this task.
        """

    def evaluate(self, params: Params, start: int, stop: int) -> Measurement:
        """Evaluate the population's test examples `start:stop`."""
