"""What a received model adds to the frozen weights beside this device's own adapter.

That is the difference to the frozen weight, and the ranks that a device of a lower rank does not
train. They are added to a layer's output and not to its weight, so that no bit is lost in bfloat16
or a quantised weight, and the base model stays as it is.

Invariant: an adapted layer's output is that of its weight plus scale · (B A + rest), with the whole
A, B and rest of the received model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedloom.client.training.adapter_scales import check_scales
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Adapters
from fedloom.strategies.adapters.settings import AdaptedLayer


@dataclass(frozen=True, slots=True)
class Extra:
    """What is added to the output of one layer, before its scale; float32.

    Attributes:
        rest: [out, in]; None for none.
        a: the ranks that are not trained here, [r, in]; None for none.
        b: likewise, [out, r].
    """

    rest: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None

    def output(self, given: Tensor) -> Tensor:
        """What it adds to the output for this input."""
        given = given.float()
        parts = []
        if self.rest is not None:
            parts.append(nn.functional.linear(given, self.rest))
        if self.a is not None and self.b is not None:
            parts.append(nn.functional.linear(nn.functional.linear(given, self.a), self.b))
        return torch.stack(parts).sum(0)

    def weight(self) -> Tensor:
        """The same as a matrix, [out, in]."""
        parts = [] if self.rest is None else [self.rest]
        if self.a is not None and self.b is not None:
            parts.append(self.b @ self.a)
        return torch.stack(parts).sum(0)

    def to(self, device: torch.device) -> "Extra":
        """The same on another device."""
        there = (None if each is None else each.to(device) for each in (self.rest, self.a, self.b))
        return Extra(*there)


class Beside:
    """What a model has at present beside its adapters; nothing at first.

    Args:
        model: of peft.
        adapter: name of its adapter.
    """

    def __init__(self, model: nn.Module, adapter: str) -> None:
        self._model = model
        self._adapter = adapter
        self._handles: list[RemovableHandle] = []
        self.extras: dict[AdaptedLayer, Extra] = {}

    def put(self, extras: Mapping[AdaptedLayer, Extra]) -> None:
        """Replace what is added to each layer."""
        for handle in self._handles:
            handle.remove()
        self.extras = {}
        self._handles = []
        for layer, extra in extras.items():
            module = self._model.get_submodule(layer.name)
            there = self.extras[layer] = extra.to(next(module.parameters()).device)
            adding = _Adding(there, self.scale(layer), self._adapter)
            self._handles.append(module.register_forward_hook(adding))

    def scale(self, layer: AdaptedLayer) -> float:
        """lora_alpha / r of a layer, as peft applies it."""
        module: Any = self._model.get_submodule(layer.name)
        return float(module.scaling[self._adapter])

    def check_scale(self, wanted: Adapters, layers: list[AdaptedLayer], *, needed: bool) -> None:
        """Check that this device scales its adapters as the run does.

        Raises:
            UsageError: it does not, or the run does not say how and the model needs it.
        """
        if wanted.scale is None and needed:
            raise UsageError(
                "Expected adapters.scale in a run whose devices differ in rank, or whose model has "
                "differences to the frozen weights, got none: with another lora_alpha / r, another "
                f"function would be averaged. This device's is {self.scale(layers[0]):g}."
            )
        check_scales(wanted, {layer.name: self.scale(layer) for layer in layers})


@dataclass(frozen=True, slots=True)
class _Adding:
    """A forward hook that adds to a layer's output while its adapter is active."""

    extra: Extra
    scale: float
    adapter: str

    def __call__(self, module: Any, given: tuple[Any, ...], output: Tensor) -> Tensor:
        if module.disable_adapters or self.adapter not in module.active_adapters:
            return output  # of the base model, or of another adapter, as DPO's reference is
        return output + (self.scale * self.extra.output(given[0])).to(output.dtype)
