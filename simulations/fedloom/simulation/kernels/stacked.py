"""One step of many clients: the objective that is mapped over them, and its sums.

Invariant: padding changes no gradient and no metric.
"""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.client.torch.loop import scores_classes
from fedloom.simulation.kernels.base import Measurement
from fedloom.simulation.kernels.losses import PerPlace

Stack = dict[str, Tensor]
_IGNORED = -100


class StackedLoss:
    """The loss of one client's padded batch, for `torch.func.grad_and_value` with its outputs.

    Args:
        model: its tensors are not used.
        loss: of each place of a batch.
    """

    def __init__(self, model: nn.Module, loss: PerPlace) -> None:
        self._model = model
        self._loss = loss

    def __call__(
        self, trained: Stack, still: Stack, x: Tensor, y: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean loss and outputs.

        Args:
            trained: the client's parameters.
            still: fixed tensors.
            x: inputs, shape [B, …].
            y: targets, shape [B, …].
            there: bool [B], false for padding.
        """
        output: Tensor = functional_call(self._model, {**trained, **still}, (x,))
        losses = self._loss(output, y)
        weights = there.reshape(-1, *[1] * (losses.ndim - 1)).expand(losses.shape)
        if not y.is_floating_point():
            weights = weights & (y != _IGNORED)
        weights = weights.to(losses.dtype)
        return (losses * weights).sum() / weights.sum().clamp(min=1), output


class StackedTraining:
    """A group of clients in training.

    Args:
        anchors: the received parameters.
        sizes: examples of each client.
    """

    def __init__(self, anchors: Stack, sizes: list[int]) -> None:
        count = len(sizes)
        self.stack = {n: t.expand(count, *t.shape).clone() for n, t in anchors.items()}
        device = next(iter(anchors.values())).device
        self._sizes = sizes
        self._loss = torch.zeros(count, dtype=torch.float64, device=device)
        self._examples, self._correct, self._targets = (
            torch.zeros(count, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._metrics: list[dict[str, float]] | None = None
        self._arrays: Mapping[str, NDArray[Any]] = {}

    def count(self, losses: Tensor, output: Tensor, y: Tensor, there: Tensor) -> None:
        """Add one step of the first clients, like `fedloom.client.torch.loop.MetricSums`.

        Args:
            losses: mean of each client's batch, [active].
            output: [active, B, …].
            y: [active, B, …].
            there: bool [active, B].
        """
        active, present = len(losses), there.sum(dim=1)
        self._examples[:active] += present
        self._loss[:active] += losses.double() * present
        if scores_classes(output[0], y[0]):
            counted = there.reshape(*there.shape, *[1] * (y.ndim - 2)) & (y >= 0)
            hits = (output.argmax(dim=2) == y) & counted
            self._correct[:active] += hits.flatten(1).sum(dim=1)
            self._targets[:active] += counted.flatten(1).sum(dim=1)

    def finish(self) -> None:
        """Copy everything into main memory, after the last step."""
        self._arrays = {name: _array(tensor) for name, tensor in self.stack.items()}
        sums = (self._loss, self._examples, self._correct, self._targets)
        self._metrics = [_means(*row) for row in zip(*(s.tolist() for s in sums), strict=True)]

    def value(self, name: str, row: int) -> NDArray[Any] | None:
        """A client's new value of a tensor; None if the tensor is not trained."""
        found: NDArray[Any] | None = self._arrays[name][row] if name in self._arrays else None
        return found

    def measured(self, row: int) -> Measurement:
        """Metrics of a client's training."""
        assert self._metrics is not None
        return Measurement(num_examples=self._sizes[row], metrics=self._metrics[row])


def _means(loss: float, examples: int, correct: int, targets: int) -> dict[str, float]:
    found = {"loss": loss / examples} if examples else {}
    return found | ({"accuracy": correct / targets} if targets else {})


def _array(tensor: Tensor) -> NDArray[Any]:
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: NDArray[Any] = wide.cpu().numpy()
    return array
