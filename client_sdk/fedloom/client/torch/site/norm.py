"""Batch normalisation over a batch that is spread over ranks, on any backend.

torch.nn.SyncBatchNorm does this on GPUs only, and stands in other modules' place; here the layers
stay what they are and get another `forward` for the time of a training.

Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, Algorithm 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom.protocol.errors import UsageError


class Counted:
    """Whether the examples of this rank are of the batch; False for a stand-in of none."""

    def __init__(self) -> None:
        self.here = True


def norms(module: nn.Module) -> list[_BatchNorm]:
    """The layers that look at a batch as a whole."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


def check_norms(module: nn.Module) -> None:
    """Refuse layers that compute something else over shares of a batch.

    Raises:
        UsageError: there are such.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm) or (
            isinstance(layer, _BatchNorm) and layer.running_mean is None
        ):
            raise UsageError(
                f"Expected BatchNorm with running statistics on a site, got "
                f"{type(layer).__name__} at {name!r}. fedloom itself makes such layers look at "
                "the whole batch."
            )


@contextmanager
def over_ranks(module: nn.Module, counted: Counted) -> Iterator[None]:
    """Have layers of a module look at the examples of all ranks."""
    layers = norms(module)
    for layer in layers:
        layer.forward = partial(_normalised, layer, counted)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _normalised(layer: _BatchNorm, counted: Counted, x: Tensor) -> Tensor:
    if not layer.training:
        return type(layer).forward(layer, x)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [1, -1] + [1] * (x.ndim - 2)
    share = float(counted.here)
    size = x.new_tensor([share * x.numel() / x.shape[1]])
    total = _summed(torch.cat([share * x.sum(axes), size]))
    size = total[-1].detach()
    if float(size) <= 1:  # on every rank alike
        raise UsageError(
            "Expected more than one value of each channel in a batch that BatchNorm looks at, got "
            "one: the last batch of an epoch has a single example. Set another batch size."
        )
    mean = total[:-1] / size
    centred = x - mean.view(shape)
    variance = _summed(share * centred.square().sum(axes)) / size
    _remember(layer, mean.detach(), variance.detach() * size / (size - 1).clamp(min=1))
    y = centred * (variance + layer.eps).rsqrt().view(shape)
    if layer.affine:
        y = y * layer.weight.view(shape) + layer.bias.view(shape)
    return y


def _summed(tensor: Tensor) -> Tensor:
    total: Tensor = all_reduce(tensor)  # type: ignore[no-untyped-call] # torch leaves it untyped
    return total


@torch.no_grad()
def _remember(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked += 1
    momentum = layer.momentum
    rate = 1.0 / float(layer.num_batches_tracked) if momentum is None else momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean), rate)
    layer.running_var.lerp_(variance.to(layer.running_var), rate)
