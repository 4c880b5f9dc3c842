"""Low-rank adapters (LoRA): clients train and send small adapters instead of the whole model.

    module = lora(module, rank=8, targets=["*.query", "*.value"])
    client = TorchClient(module, (x, y), loss)          # sends only the adapters

A layer y = Wx becomes y = Wx + (alpha / rank)·BAx; W is frozen, A and B are trained. They are named
`LAYER.lora_a` and `LAYER.lora_b`. The layer's own tensors keep their names, so a model without
adapters can be loaded.

Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models,
https://arxiv.org/abs/2106.09685, section 4.1.

Invariant: untrained adapters do not change the outputs, because B is initialised to zero.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloom.protocol.errors import UsageError
from fedloom.strategies.adapters.settings import layers

A, B = "lora_a", "lora_b"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter: A [rank, in], B [out, rank]."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus the adapter's."""
        inner = functional.linear(x, self.lora_a)
        return super().forward(x) + self.lora_scale * functional.linear(inner, self.lora_b)

    def difference(self) -> Tensor:
        """The difference of the weight that has the same effect as the adapter."""
        return self.lora_scale * (self.lora_b @ self.lora_a)


class LoraConv2d(nn.Conv2d):
    """A convolution with an adapter: A [rank, in, kh, kw], B [out, rank, 1, 1]."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus the adapter's."""
        inner = self._conv_forward(x, self.lora_a, None)
        return super().forward(x) + self.lora_scale * functional.conv2d(inner, self.lora_b)

    def difference(self) -> Tensor:
        """As `LoraLinear.difference`."""
        return self.lora_scale * torch.einsum("or,rikl->oikl", self.lora_b[:, :, 0, 0], self.lora_a)


_KINDS: dict[type[nn.Module], type[LoraLinear | LoraConv2d]] = {
    nn.Linear: LoraLinear,
    nn.Conv2d: LoraConv2d,
}
_PLAIN = {adapted: plain for plain, adapted in _KINDS.items()}


def lora(
    module: nn.Module,
    rank: int = 8,
    alpha: float | None = None,
    targets: Sequence[str] = ("*",),
    train: Sequence[str] = (),
) -> nn.Module:
    """Add adapters to layers of a module and freeze all other parameters.

    Args:
        module: changed in place, and returned.
        rank: of an adapter, >= 1.
        alpha: scale of the adapters' outputs, times the rank. Default: twice the rank.
        targets: globs over names of `nn.Linear` and `nn.Conv2d` layers.
        train: globs over names of other parameters to train and send, such as a new head.

    Raises:
        UsageError: a glob matches no layer, or a layer cannot have an adapter.
    """
    if rank < 1:
        raise UsageError(f"Expected a rank of 1 or more, got {rank}.")
    if any(True for _ in adapted(module)):
        raise UsageError("Expected a module without adapters, got one with adapters.")
    plain = {n: m for n, m in module.named_modules() if type(m) in _KINDS}
    chosen = [name for name in plain if _matches(name, targets)]
    for glob in targets:
        if not any(fnmatchcase(name, glob) for name in plain):
            raise UsageError(
                f"The target {glob!r} matches no linear layer or convolution. The module has "
                f"{', '.join(list(plain)[:8])}, …"
            )
    for name, param in module.named_parameters():
        param.requires_grad_(_matches(name, train))
    for name in chosen:
        _adapt(name, plain[name], rank, 2.0 * rank if alpha is None else alpha)
    return module


def adapted(module: nn.Module) -> Iterator[LoraLinear | LoraConv2d]:
    """The layers that have adapters."""
    return (layer for layer in module.modules() if isinstance(layer, LoraLinear | LoraConv2d))


@torch.no_grad()
def merged(module: nn.Module) -> nn.Module:
    """A copy of a module with its adapters merged into plain layers; the outputs are the same.

    Its tensors have the names and shapes from before `lora`.
    """
    made = copy.deepcopy(module)
    for layer in list(adapted(made)):
        layer.weight += layer.difference().to(layer.weight)
        del layer.lora_a, layer.lora_b, layer.lora_scale
        layer.__class__ = _PLAIN[type(layer)]  # type: ignore[assignment] # its class before `lora`
    return made


def sent_names(module: nn.Module) -> set[str]:
    """Names of the tensors that a module with adapters sends: those that are trained."""
    return {name for name, param in module.named_parameters() if param.requires_grad}


def scales(module: nn.Module) -> dict[str, float | None]:
    """The scales of a module's adapted layers, by name; None for layers that do not have one."""
    names = [each.name for each in layers(module.state_dict())]
    return {name: getattr(module.get_submodule(name), "lora_scale", None) for name in names}


def _adapt(name: str, layer: nn.Module, rank: int, alpha: float) -> None:
    weight: Any = layer.weight
    if getattr(layer, "groups", 1) > 1:
        raise UsageError(
            f"Expected convolutions without groups, got {layer.groups} groups in {name!r}. Remove "
            "it from targets."
        )
    most = min(weight.shape[0], weight[0].numel())
    if rank > most:
        raise UsageError(
            f"Expected a rank of at most {most} for {name!r}, whose weight is "
            f"{tuple(weight.shape)}, got {rank}. Lower the rank, or remove the layer from targets."
        )
    a = weight.new_empty(rank, *weight.shape[1:])
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    b = weight.new_zeros(weight.shape[0], rank, *(1,) * (weight.ndim - 2))
    layer.__class__ = _KINDS[type(layer)]
    layer.lora_a, layer.lora_b = nn.Parameter(a), nn.Parameter(b)
    layer.lora_scale = alpha / rank  # type: ignore[assignment] # of the subclass


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
