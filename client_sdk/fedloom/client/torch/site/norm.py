"""Batch normalisation over a batch that is distributed over ranks, on any backend.

torch.nn.SyncBatchNorm supports only GPUs and replaces layers. Here the layers stay and get another
`forward` during a training.

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
    """Whether this rank's examples count; False for the placeholder of an empty share."""

    def __init__(self) -> None:
        self.here = True


def norms(module: nn.Module) -> list[_BatchNorm]:
    """The layers whose outputs depend on the whole batch."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


def check_norms(module: nn.Module) -> None:
    """Check that a module's normalisation layers can be computed over ranks.

    Raises:
        UsageError: one cannot.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm) or (
            isinstance(layer, _BatchNorm) and layer.running_mean is None
        ):
            raise UsageError(
                f"Expected BatchNorm with running statistics on a site, got "
                f"{type(layer).__name__} at {name!r}. fedloom computes BatchNorm over the whole "
                "batch."
            )


@contextmanager
def over_ranks(module: nn.Module, counted: Counted) -> Iterator[None]:
    """Normalise over the examples of all ranks while the context is open."""
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
    if float(size) <= 1:  # the same on every rank
        raise UsageError(
            "BatchNorm needs more than one value per channel, but the last batch of an epoch has a "
            "single example. Set another batch size."
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
