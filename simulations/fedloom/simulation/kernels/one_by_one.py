"""Base classes of kernels: a resident model, its evaluation, clients trained one after another.

Sources: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized
data", Algorithm 1, ClientUpdate.

Invariant: one client's examples are gathered at a time, so memory does not grow with clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import nn

from fedloom.client.torch import batches, loop
from fedloom.client.torch.rules import cluster_choice
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.message import TensorPart
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.base import (
    ClientJob,
    ClientOutcome,
    Measurement,
    Params,
    RoundTask,
    Scores,
)
from fedloom.simulation.kernels.holdings import Holdings
from fedloom.simulation.kernels.metrics import Metric, Recorded, measured, of_clients
from fedloom.simulation.kernels.state import ModelState
from fedloom.strategies import ClientRule, Plain

Fitted: TypeAlias = tuple[loop.MetricSums, Sequence[TensorPart]]
"""Metrics of the training, and the update."""


class OnModel:
    """Holds a resident model and the clients' data, and evaluates; subclasses train.

    Args:
        model: changed in place, by this kernel only; moved to the device.
        loss: mean loss of a batch, of (outputs, targets).
        population: the clients' data.
        device: to compute on. On the CPU set torch to one thread first: more may change the last
            bits.
        optimizer: called with (params, lr=…) for each client; None for plain gradient descent.
        metrics: more to measure in evaluations, by name.

    Raises:
        UsageError: the kernel does not support the model, loss or optimizer.
    """

    follows: ClassVar[frozenset[str]] = frozenset()
    """Special settings of a round that the kernel supports."""

    def __init__(
        self,
        model: nn.Module,
        loss: loop.Loss,
        population: Population,
        device: torch.device,
        optimizer: loop.MakeOptimizer | None = None,
        *,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        reason = self.misses(device) or self.carries(model, loss, Plain(), optimizer, population)
        if reason:
            raise UsageError(
                f"{type(self).__name__} cannot train this: {reason}. Use another kernel."
            )
        model = self.arranged(model)
        self.model = model.to(device)
        self.loss = loss
        self.optimizer = optimizer
        self.metrics = metrics or {}
        self.device = device
        self.holdings = Holdings(population, device)
        self.names = population.names
        self.state = ModelState(model)
        self._carried: tuple[ClientRule, tuple[str, ...]] | None = None
        self.prepare()

    def arranged(self, model: nn.Module) -> nn.Module:
        """The model in this kernel's memory layout; called before its tensors are used."""
        return model

    def prepare(self) -> None:
        """Set up more of a kernel, at the end of its constructor."""

    @staticmethod
    def load(model: nn.Module, batch_size: int) -> None:
        """Load what workers of this kernel share if they are forked later, such as a compiler.

        Args:
            model: as for the constructor; not changed.
            batch_size: of the run; 0 for full batches.
        """

    @staticmethod
    def carries(
        model: nn.Module,  # noqa: ARG004 - all are supported
        loss: loop.Loss,  # noqa: ARG004
        rule: ClientRule,  # noqa: ARG004
        optimizer: loop.MakeOptimizer | None,  # noqa: ARG004
        population: Population | None = None,  # noqa: ARG004
    ) -> str:
        """Why this kernel does not support these; empty if it does."""
        return ""

    @classmethod
    def misses(cls, device: torch.device) -> str:  # noqa: ARG003 - all are supported
        """Why this kernel cannot run on a device; empty if it can."""
        return ""

    def evaluate(self, params: Params, start: int, stop: int) -> Measurement:
        """Evaluate test examples; see `Kernel.evaluate`."""
        self.state.receive(params)
        found, scores = self._measured(self.holdings.test(start, stop), start)
        return found._replace(scores=scores)

    @classmethod
    def lacks(cls, special: Sequence[str]) -> str:
        """Why this kernel does not support all of these settings; empty if it does."""
        lacking = [name for name in special if name not in cls.follows]
        lacking = [name if "." in name else f"train.{name}" for name in lacking]
        return f"{cls.__name__.lower()} does not support {' or '.join(lacking)}" if lacking else ""

    def check(self, task: RoundTask) -> None:
        """Refuse an unsupported task; tasks with equal rule and settings are checked once."""
        rule, special = task.rule, task.special
        if (rule, special) == self._carried:
            return
        reason = self.carries(self.model, self.loss, rule, self.optimizer)
        if reason := reason or self.lacks(special):
            raise UsageError(f"The kernel cannot do this task: {reason}. Use another kernel.")
        self._carried = rule, special

    def evaluated(self, client: int) -> Measurement:
        """Evaluate the current model on a client's held-out examples."""
        found, scores = self._measured(self.holdings.held_out(client))
        if scores is None:
            return found
        of = f"the held-out examples of {self.names[client]}"
        more = measured(of_clients(self.metrics), scores, found.metrics["loss"], of)
        return found._replace(metrics={**found.metrics, **more})

    def _measured(
        self, examples: batches.ExampleSource | None, start: int = 0
    ) -> tuple[Measurement, Scores | None]:
        """The measurement, and the scores if there are metrics that need them."""
        if examples is None:
            return Measurement(), None
        loss = Recorded(self.loss) if self.metrics else self.loss
        totals = loop.measure(self.model, batches.in_order(examples), loss)
        found = Measurement(num_examples=totals.num_examples, metrics=totals.metrics())
        return found, loss.scores(start) if isinstance(loss, Recorded) else None


class OneByOne(OnModel, ABC):
    """Trains one client after another; subclasses define how."""

    @abstractmethod
    def fit(self, job: ClientJob, task: RoundTask, local: RuleContext) -> Fitted:
        """Train the model in place on one client's examples, with the rule's context."""

    def work(
        self, params: Params, task: RoundTask, jobs: Sequence[ClientJob]
    ) -> Iterator[ClientOutcome]:
        """Do the jobs, one after another; see `Kernel.work`."""
        self.check(task)
        self.state.receive(params)
        for job in jobs:
            local = task.local(job)
            evaluation = Measurement()
            if task.evaluate:
                self.state.reset(local.evaluated(params))
                self._settle(job, task, local, params)
                evaluation = self.evaluated(job.client)
            if not task.train:
                yield ClientOutcome(client=job.client, evaluation=evaluation)
                continue
            self.state.reset(local.own(params))
            self._settle(job, task, local, params)
            totals, parts = self.fit(job, task, local)
            num_examples = len(self.holdings.shard(job.client))
            metrics = {**totals.metrics(), **local.extra_metrics}
            yield ClientOutcome(
                client=job.client,
                parts=parts,
                training=Measurement(num_examples=num_examples, metrics=metrics),
                evaluation=evaluation,
                local=local,
            )

    def _settle(self, job: ClientJob, task: RoundTask, local: RuleContext, params: Params) -> None:
        """If there are several models, choose the one that fits the client best."""
        if task.rule.picks:
            examples = self.holdings.source(job.client)
            cluster_choice.settle_on(self.model, examples, self.loss, params, task.rule, local)
