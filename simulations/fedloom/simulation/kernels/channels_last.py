"""The resident kernel with channels last in memory: for chains of layers over images, on CPUs.

PyTorch's CPU kernels for convolution and pooling vectorise over the channels of a pixel. Measured
speedup: 1.15 to 1.25 on McMahan's CNN with batches of 10 to 50, none on small networks. Plain
gradient descent trains linear layers as `direct` does: a further factor of 1.2.

Invariant: updates have the shapes, batches and metrics of `resident`; values differ only by
rounding.
"""

from typing import ClassVar

import torch
from torch import nn

from fedloom.client.torch import loop
from fedloom.client.training.client_rule import RuleContext
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels import direct
from fedloom.simulation.kernels.base import ClientJob, RoundTask
from fedloom.simulation.kernels.one_by_one import Fitted
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import ClientRule

_LAYERS = (
    nn.Sequential,
    nn.Conv2d,
    nn.Linear,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.BatchNorm2d,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Dropout,
    nn.Flatten,
    nn.Unflatten,
    nn.Identity,
)
"""Other modules may call `view`, which fails on tensors with channels last."""


class ChannelsLast(Resident):
    """Trains `nn.Sequential` networks of convolutions with autograd and any optimizer."""

    follows: ClassVar[frozenset[str]] = Resident.follows - {"engine.precision"}

    def prepare(self) -> None:
        """Make the direct form of the model for plain gradient descent."""
        plain = self.optimizer in (None, loop.SGD)
        self._direct = direct.of(self.model, self.loss) if plain else None

    def arranged(self, model: nn.Module) -> nn.Module:
        """The model with channels last."""
        last: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return last

    def fit(self, job: ClientJob, task: RoundTask, local: RuleContext) -> Fitted:
        """Train without gradients of linear weights if nothing needs them."""
        if self._direct is None or task.special or task.rule.name != "plain":
            return super().fit(job, task, local)
        totals = self._train(self._direct, job, task, local, self._direct.descent)
        return totals, self.state.parts()

    @staticmethod
    def carries(
        model: nn.Module,
        loss: loop.Loss,  # noqa: ARG004 - all are supported
        rule: ClientRule,  # noqa: ARG004
        optimizer: loop.MakeOptimizer | None,  # noqa: ARG004
        population: Population | None = None,  # noqa: ARG004
    ) -> str:
        """See `OnModel.carries`; needs a plain sequence of layers with convolutions."""
        modules = list(model.modules())
        if not any(isinstance(module, nn.Conv2d) for module in modules):
            return "the model has no convolution over images"
        if other := next((m for m in modules if type(m) not in _LAYERS), None):
            return f"channels-last does not support {type(other).__name__}"
        return ""
