"""The interface of kernels: a model and some clients in, their updates out.

Invariant: an update depends on the model, the task, the client's data and its seed. It never
depends on the other clients of the call, their order, or the worker.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from fedloom.client.api import Scalar, Task, Weighting
from fedloom.client.training.client_rule import RuleContext
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.updates.compression import Scheme
from fedloom.protocol.updates.message import TensorPart
from fedloom.simulation.training.attacks import Attack
from fedloom.strategies import Adapters, ClientRule, Personal, RoundSettings
from fedloom.strategies.masking.settings import Masking

Params: TypeAlias = Mapping[str, NDArray[Any]]


def nothing_local(_: "ClientJob") -> RuleContext:
    """The context of a rule that receives and remembers nothing."""
    return RuleContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """The task of a round, equal for all its clients.

    Attributes:
        run: id of the run.
        round: number of the round in it, from 1.
        training_round: number of the training round, as in `Task`.
        settings: epochs or steps, batch size (0: all in one batch) and learning rate.
        rule: the client rule; changes local gradients.
        config: settings for the client's own code.
        weighting: the source of an update's weight.
        evaluate: whether clients evaluate on their held-out examples before they train.
        train: whether they train.
        factor: staleness discount of deltas, from 0 to 1; weights are not discounted.
        memory: folder of the memories of client rules; empty for none.
        local: returns the rule's context for a job.
        compression: the encoding of updates.
        spool: folder that updates are written to; empty if they are added at once.
        attack: changes the updates of attackers; None without attackers.
        attackers: their indices in the population.
        personal: the tensors that stay with each client.
        adapters: what is averaged of low-rank adapters.
        own_code: whether the clients' own code decides what they send.
        guard: clips updates and adds noise for privacy; None without privacy.
        masking: of masked sums; None without [masking].
    """

    run: str
    round: int
    settings: RoundSettings
    rule: ClientRule
    training_round: int = 0
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
    own_code: bool = False
    personal: Personal = field(default_factory=Personal)
    adapters: Adapters = field(default_factory=Adapters)
    masking: Masking | None = None

    @property
    def remembers(self) -> bool:
        """Whether clients keep state from round to round."""
        of_codec = self.compression is not None and self.compression.remembers
        return of_codec or bool(self.rule.remembers) or self.personal.remembers

    @property
    def special(self) -> tuple[str, ...]:
        """Names of settings that change plain local training."""
        return (*self.settings.special, *self.personal.special, *self.adapters.special)

    @property
    def sizes_vary(self) -> bool:
        """Whether the bytes of an update depend on its values, or on the clients' own code."""
        of_codec = self.compression is not None and self.compression.codec.varies
        return self.train and self.masking is None and (of_codec or self.own_code)


class ClientJob(NamedTuple):
    """One client's share of a round.

    A named tuple, like `Measurement`: it is made for every client, and making a frozen dataclass
    takes four times as long.

    Attributes:
        client: its index in the population.
        seed: of its random numbers in this round, from 0 to 2^63 − 1.
        memory_round: the last committed round with its update; 0 for none.
        most_steps: steps that its device takes within `time_budget_s`; 0 for no limit.
        members: of its masking session; 0 without.
    """

    client: int
    seed: int
    memory_round: int = 0
    most_steps: int = 0
    members: int = 0


def asked_of(task: RoundTask, job: ClientJob, client: str, local: RuleContext) -> Task:
    """The task as the deployed client of this name would get it."""
    return Task(
        run=task.run,
        round=task.round,
        training_round=task.training_round,
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


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Outputs of a model and the targets.

    Attributes:
        start: place of the first example.
        outputs: shape (N, …).
        targets: shape (N, …).
    """

    start: int
    outputs: NDArray[Any]
    targets: NDArray[Any]


_NOTHING: Mapping[str, float] = {}


class Measurement(NamedTuple):
    """Means over examples.

    Attributes:
        num_examples: number of examples.
        metrics: `loss`, `accuracy` if targets are class numbers, and the experiment's own.
        scores: of test examples, for metrics of all of them; None if not needed.
    """

    num_examples: int = 0
    metrics: Mapping[str, float] = _NOTHING
    scores: Scores | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcome:
    """The result of one job.

    Attributes:
        client: its index in the population.
        parts: trained minus received values; valid until the next outcome is requested.
        training: metrics during training, while the model changed.
        evaluation: metrics of the received model on its held-out examples.
        weight: set if the run weights by client.
        local: the rule's context, with what the training recorded in it.
    """

    client: int
    parts: Sequence[TensorPart] = ()
    training: Measurement = Measurement()  # noqa: RUF009 - immutable
    evaluation: Measurement = Measurement()  # noqa: RUF009 - immutable
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
            task: the round's task.
            jobs: the clients to train.

        Raises:
            UsageError: the kernel does not support this task.
        """

    def evaluate(self, params: Params, start: int, stop: int) -> Measurement:
        """Evaluate the population's test examples `start:stop`."""
