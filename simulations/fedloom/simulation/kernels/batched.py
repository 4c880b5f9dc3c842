"""Many clients as one computation: stacked parameters, `torch.func` over the stack.

A GPU that trains one small model idles between kernel launches; here one launch serves a group of
clients. Clients with similar numbers of steps share a group, ordered by steps, so that finished
clients are the last rows. A batch that is not full is padded with weight 0.

Sources: `torch.func` (vmap over grad), as in Bradbury et al.'s JAX; padding and bucketing of
clients as in Ro, Suresh, Wu 2021, "FedJAX: federated learning simulation with JAX".

Invariants: groups depend only on the jobs; an update differs from that of `resident` only by
rounding, which may depend on the group.

Legend: K clients in a group, S steps of the longest, B examples in a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedloom.client.torch import batches, loop
from fedloom.client.training.length import num_steps
from fedloom.protocol.updates.message import TensorPart
from fedloom.simulation.data.mapped import MappedRows
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.base import ClientJob, ClientOutcome, Measurement, Params, RoundTask
from fedloom.simulation.kernels.batchable import why_not
from fedloom.simulation.kernels.losses import per_place
from fedloom.simulation.kernels.one_by_one import OnModel
from fedloom.simulation.kernels.stacked import StackedLoss, StackedTraining
from fedloom.strategies import DELTA, ClientRule, Full, RoundSettings, TensorAtStep

_MAX_GROUP = 256
_GROUP_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
_COPIES = 4
"""Of each parameter: its value, its gradient, and intermediate results."""


class Batched(OnModel):
    """Trains groups of clients at once, by plain gradient descent."""

    follows: ClassVar[frozenset[str]] = frozenset({"clip_norm", "engine.precision"})

    def prepare(self) -> None:
        """Stack nothing yet: split the model into trained and fixed tensors."""
        per_example = per_place(self.loss)
        assert per_example is not None
        held = self.model.state_dict(keep_vars=True)
        self._anchors = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        self._still = {n: t.detach() for n, t in held.items() if n not in self._anchors}
        objective = StackedLoss(self.model, per_example)
        self._step = vmap(grad_and_value(objective, has_aux=True), (0, None, 0, 0, 0))

    @staticmethod
    def carries(
        model: nn.Module,
        loss: loop.Loss,
        rule: ClientRule,
        optimizer: loop.MakeOptimizer | None,
        population: Population | None = None,
    ) -> str:
        """See `OnModel.carries`."""
        if optimizer not in (None, loop.SGD):
            return "batched supports only plain gradient descent"
        if not rule.is_elementary:
            return f"batched keeps no memory, as the client rule {rule.name!r} needs"
        if per_place(loss) is None:
            return "batched supports only the losses cross_entropy and mse"
        if population is not None and population.transform is not None:
            return "batched does not support data.transform"
        if population is not None and isinstance(population.examples.x, MappedRows):
            return "batched keeps all inputs in memory, and these are mapped"
        return why_not(model, population)

    def work(
        self, params: Params, task: RoundTask, jobs: Sequence[ClientJob]
    ) -> Iterator[ClientOutcome]:
        """Do the jobs, one group at a time; see `Kernel.work`."""
        self.check(task)
        self.state.receive(params)
        evaluations = [self.evaluated(j.client) if task.evaluate else Measurement() for j in jobs]
        if not task.train:
            for job, evaluation in zip(jobs, evaluations, strict=True):
                yield ClientOutcome(client=job.client, evaluation=evaluation)
            return
        for group in self._groups(task.settings, jobs):
            trained = self._train([jobs[place] for place in group], task)
            for row, place in enumerate(group):
                yield self._outcome(jobs[place].client, evaluations[place], trained, row, params)

    def _groups(self, settings: RoundSettings, jobs: Sequence[ClientJob]) -> Iterator[list[int]]:
        """Indices of jobs in groups, jobs with the most steps first."""
        sizes = [len(self.holdings.shard(job.client)) for job in jobs]
        steps = [num_steps(size, settings) for size in sizes]
        order = sorted(range(len(jobs)), key=lambda place: (-steps[place], -sizes[place], place))
        start = 0
        while start < len(order):
            width = settings.batch_size or sizes[order[start]]
            room = _GROUP_BYTES[self.device.type] // self._bytes(width)
            count = max(1, min(_MAX_GROUP, room))
            yield order[start : start + count]
            start += count

    def _bytes(self, batch: int) -> int:
        """Bytes that one more client in a group needs."""
        params = sum(param.nbytes for param in self._anchors.values())
        return _COPIES * params + batch * self.holdings.bytes_per_example()

    def _train(self, jobs: Sequence[ClientJob], task: RoundTask) -> StackedTraining:
        plans = [self._plan(job, task.settings) for job in jobs]
        width = max(plan.shape[1] for plan in plans)
        indices = torch.full((len(plans), len(plans[0]), width), -1, dtype=torch.int64)
        for row, plan in zip(indices, plans, strict=True):
            row[: plan.shape[0], : plan.shape[1]] = plan
        indices = indices.to(self.device)
        trained = StackedTraining(
            self._anchors, [len(self.holdings.shard(job.client)) for job in jobs]
        )
        self.model.train()
        for step in range(indices.shape[1]):
            active = sum(len(plan) > step for plan in plans)
            self._advance(trained, indices[:active, step], task)
        trained.finish()
        return trained

    @torch.no_grad()
    def _advance(self, trained: StackedTraining, indices: Tensor, task: RoundTask) -> None:
        """One step of the first `active` clients of a group, on examples at indices [active, B]."""
        active = len(indices)
        there = indices >= 0
        x, y = self.holdings.take(indices.clamp(min=0))
        stack = {name: tensor[:active] for name, tensor in trained.stack.items()}
        grads, (values, output) = self._step(stack, self._still, x, y, there)
        if task.settings.clip_norm is not None:
            grads = _clipped(grads, task.settings.clip_norm)
        for name, grad in grads.items():
            change = task.rule.gradient(
                grad, TensorAtStep(param=stack[name], anchor=self._anchors[name])
            )
            stack[name].add_(change, alpha=-task.settings.learning_rate)
        trained.count(values, output, y, there)

    def _plan(self, job: ClientJob, settings: RoundSettings) -> Tensor:
        """The examples of each step of a client, int64 [S, B]; −1 is padding."""
        shard = torch.from_numpy(self.holdings.shard(job.client).copy())
        size, steps = len(shard), num_steps(len(shard), settings)
        if not settings.batch_size:
            return shard.expand(steps, size)
        width = settings.batch_size
        per_epoch = -(-size // width)
        epochs = -(-steps // per_epoch)
        plan = torch.full((epochs, per_epoch * width), -1, dtype=torch.int64)
        for row, order in zip(plan, batches.orders(size, job.seed), strict=False):
            row[:size] = shard[order]
        return plan.view(-1, width)[:steps]

    def _outcome(
        self,
        client: int,
        evaluation: Measurement,
        trained: StackedTraining,
        row: int,
        params: Params,
    ) -> ClientOutcome:
        parts = []
        for name in self.state.sent:
            value = trained.value(name, row)
            old = params[name]
            parts.append(TensorPart(DELTA, name, Full(), old if value is None else value, old))
        measured = trained.measured(row)
        return ClientOutcome(client=client, parts=parts, training=measured, evaluation=evaluation)


def _clipped(grads: Mapping[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    """Each client's gradients [K, …] scaled down to a norm, as `torch.nn.utils.clip_grad_norm_`."""
    norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads.values()]).norm(dim=0)
    scale = (clip_norm / (norms + 1e-6)).clamp(max=1.0)
    return {name: grad * scale.view(-1, *[1] * (grad.ndim - 1)) for name, grad in grads.items()}
