"""Plain gradient descent that adds a linear layer's gradient to its weight without storing it.

The gradient of a weight W [out, in] is dᵀh, for inputs h [B, in] and the gradient d [B, out] of
outputs. Autograd writes it; descent reads it and writes W. In McMahan's CNN, whose 512 × 3136
weight has 6.4 MB, that was the largest cost after the convolutions. Here the step is
W ← W − η dᵀh in one matrix product, taken as soon as the backward pass has read W: after the
convolutions below it, the cache would have lost it. Two more savings: oneDNN computes h Wᵀ and
dW, where PyTorch would take MKL, which took two to three times as long on AMD's CPUs; ReLU follows
the maximum of a pooling window, where a quarter of the values is left. Together 1.3 times the speed
on that CNN, one thread.

Source: the product of a batch's inputs and gradients as in `fused`. Maximum and ReLU commute, as
both are monotone; where they pick different inputs of a window the gradient is zero.

Invariants: a weight changes after its last use in the backward pass: one that is shared or used
twice, after the whole of it; results differ from autograd's by rounding; parameters have the
model's names.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedloom.client.torch import loop

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LARGE = 1 << 18
"""Least number of weights of a layer: steps on 1 to 600 inputs are then 1.1 to 3 times as fast."""
_FEW = 4
"""Inputs up to which MKL is as fast as oneDNN in such layers."""

Subtract = Callable[[Tensor, Tensor, Tensor], None]
"""Takes a weight's step by its product: called with W, d and h."""


@dataclass(slots=True)
class Products:
    """The products η dᵀh of the step that is under way.

    Attributes:
        rate: η, from `Descent.zero_grad` to the step; None while there is no step.
        waiting: weights W, gradients d and inputs h of those to subtract in the step.
    """

    rate: float | None = None
    waiting: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def begin(self, rate: float) -> None:
        """Begin a step; what waits is dropped."""
        self.rate = rate
        self.waiting.clear()

    def add(self, weight: Tensor, d: Tensor, h: Tensor, *, is_last_use: bool) -> None:
        """Subtract a product now if nothing reads the weight before the step, else in the step."""
        if is_last_use and self.rate is not None:
            weight.addmm_(d.t(), h, alpha=-self.rate)
        else:
            self.waiting.append((weight, d, h))

    def end(self, rate: float) -> None:
        """Subtract what waits, as the step."""
        for weight, d, h in self.waiting:
            weight.addmm_(d.t(), h, alpha=-rate)
        self.waiting.clear()
        self.rate = None


class Direct(nn.Sequential):
    """The same sequence of modules with the same parameters and names, computed as above.

    Args:
        model: accepted by `of`; its modules are shared.

    Attributes:
        products: of the last backward pass.
    """

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self._modules.update(model._modules)  # noqa: SLF001 - named_children omits repetitions
        self.products = Products()
        self._steps = list(self._arranged(list(_leaves(model))))

    def forward(self, x: Tensor) -> Tensor:
        """Compute what the model computes."""
        for step in self._steps:
            x = step(x)
        return x

    def descent(self, params: Iterable[nn.Parameter], /, *, lr: float) -> "Descent":
        """Make this network's optimizer."""
        return Descent(params, lr=lr, products=self.products)

    def _arranged(self, leaves: list[nn.Module]) -> Iterator[Callable[[Tensor], Tensor]]:
        uses = Counter(leaf.weight.data_ptr() for leaf in leaves if type(leaf) is nn.Linear)
        while leaves:
            leaf = leaves.pop(0)
            if type(leaf) is nn.ReLU and leaves and _is_max(leaves[0]):
                yield leaves.pop(0)
            if type(leaf) is nn.Linear:
                is_used_once = uses[leaf.weight.data_ptr()] == 1
                yield _Linear(leaf, self.products, is_used_once=is_used_once)
            else:
                yield leaf


def of(model: nn.Module, loss: loop.Loss) -> Direct | None:
    """The direct form of a model; None if code could notice the difference.

    Hooks may read gradients that do not exist; a user's own loss may compute gradients itself.
    """
    modules = list(model.modules())
    if (
        type(model) is not nn.Sequential
        or any("forward" in vars(module) for module in modules)
        or any(getattr(module, hooks) for module in modules for hooks in _HOOKS)
        or any(_is_watched(param) for param in model.parameters())
        or not getattr(loss, "__module__", "").startswith("torch.nn.")
    ):
        return None
    return Direct(model)


class Descent(loop.SGD):
    """Plain gradient descent that also subtracts products.

    Each step is `zero_grad`, one backward pass and `step`, with the rate that `zero_grad` finds.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], /, *, lr: float, products: Products | None = None
    ) -> None:
        super().__init__(params, lr=lr)
        self._products = Products() if products is None else products

    def zero_grad(self) -> None:
        """Drop the gradients and the waiting products, and begin a step."""
        super().zero_grad()
        self._products.begin(self.param_groups[0]["lr"])

    @torch.no_grad()
    def step(self) -> None:
        """Take one step against the gradients."""
        super().step()
        self._products.end(self.param_groups[0]["lr"])


class _Linear:
    """A linear layer that leaves its weight's steps to `products`; its bias has a gradient."""

    def __init__(self, linear: nn.Linear, products: Products, *, is_used_once: bool) -> None:
        self._linear = linear
        self._subtract = partial(products.add, is_last_use=is_used_once)

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self._linear.weight, self._linear.bias
        wanted = weight.requires_grad and torch.is_grad_enabled()
        if not wanted or x.ndim != 2 or weight.numel() < _LARGE:
            return functional.linear(x, weight, bias)
        found: Tensor = _Product.apply(x, weight, bias, self._subtract)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return found


class _Product(Function):
    """h Wᵀ + b; the backward pass leaves the step of W to `subtract`."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, subtract: Subtract
    ) -> Tensor:
        ctx.kept = weight, h, subtract  # not saved tensors: weights change before the next use
        return _times(h, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        weight, h, subtract = ctx.kept
        below = _times(d, weight.t(), None) if ctx.needs_input_grad[0] else None
        subtract(weight, d, h)
        return below, None, d.sum(0) if ctx.needs_input_grad[2] else None, None


def _times(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x Wᵀ + b, as `functional.linear` but for rounding."""
    if len(x) <= _FEW or not (x.is_cpu and x.dtype is torch.float32 and _has_onednn()):
        return functional.linear(x, weight, bias)
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        return functional.linear(x, weight, bias)  # oneDNN has a plain loop, 100 times slower
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001 - no public operator takes plain tensors
    return found


@cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def _leaves(model: nn.Sequential) -> Iterator[nn.Module]:
    for module in model:
        if type(module) is nn.Sequential:
            yield from _leaves(module)
        else:
            yield module


def _is_max(module: nn.Module) -> bool:
    return type(module) is nn.MaxPool2d and not module.return_indices


def _is_watched(param: nn.Parameter) -> bool:
    hooks = param._backward_hooks, getattr(param, "_post_accumulate_grad_hooks", None)  # noqa: SLF001
    return any(hooks)
