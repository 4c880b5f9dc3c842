"""The losses that fast kernels support, and their values for single examples."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloom.client.torch.loop import Loss

PerPlace = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs and targets of a batch to one loss for each example, or each place in it."""


def is_cross_entropy(loss: Loss) -> bool:
    """Whether it is mean cross-entropy without class weights, smoothing or other settings."""
    if type(loss) is nn.CrossEntropyLoss:
        settings = loss.weight, loss.ignore_index, loss.reduction, loss.label_smoothing
        return settings == (None, -100, "mean", 0.0)
    return loss is functional.cross_entropy


def per_place(loss: Loss) -> PerPlace | None:
    """The same loss before the mean; None for an unsupported loss."""
    if is_cross_entropy(loss):
        return lambda output, y: functional.cross_entropy(output, y, reduction="none")
    squared = type(loss) is nn.MSELoss and loss.reduction == "mean"
    if squared or loss is functional.mse_loss:
        return lambda output, y: torch.square(output - y)
    return None
