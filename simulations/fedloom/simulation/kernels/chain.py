"""Find the chain of linear layers that a module is, by tracing it with torch.fx.

Invariant: a module accepted as a chain computes what its links compute, in training and in
evaluation. Unknown operations are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional


class NotAChainError(Exception):
    """The module is not a chain; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Link:
    """A linear layer and the activation after it.

    Attributes:
        linear: the layer, shared with the module.
        activation: `relu`, `tanh`, `sigmoid` or empty.
        flattened: whether inputs are flattened before it.
    """

    linear: nn.Linear
    activation: str
    flattened: bool


_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "identity",
}
_FUNCTIONS: dict[Callable[..., Any] | str, str] = {
    functional.relu: "relu",
    torch.relu: "relu",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}


def links(model: nn.Module) -> Sequence[Link]:
    """The links of a chain, in order.

    Raises:
        NotAChainError: the module is not a chain.
    """
    _check_tensors(model)
    found: list[Link] = []
    flattened = False
    for step in _steps(model):
        if isinstance(step, nn.Linear):
            found.append(Link(step, "", flattened))
        elif step == "flatten":
            flattened = True
        elif step != "identity":
            if not found or found[-1].activation:
                raise NotAChainError(f"fused needs a linear layer before each {step}")
            found[-1] = Link(found[-1].linear, step, found[-1].flattened)
    if not found or found[-1].activation:
        raise NotAChainError("fused needs a linear layer at the end")
    layers = [link.linear for link in found]
    if len({id(layer.weight) for layer in layers}) < len(layers):
        raise NotAChainError("fused needs different weights in each layer")
    if any(a.out_features != b.in_features for a, b in pairwise(layers)):
        raise NotAChainError("the sizes of its layers do not match")
    if len(list(model.parameters())) > sum(2 - (layer.bias is None) for layer in layers):
        raise NotAChainError("the model has parameters beyond its linear layers")
    return found


def _check_tensors(model: nn.Module) -> None:
    if next(model.buffers(), None) is not None:
        raise NotAChainError("the model has buffers")
    for param in model.parameters():
        if not param.requires_grad:
            raise NotAChainError("some parameters are frozen")
        if param.dtype not in (torch.float32, torch.float64):
            raise NotAChainError(f"fused needs float32 or float64, not {param.dtype}")
    for module in model.modules():
        if any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks")):
            raise NotAChainError(f"{type(module).__name__} has hooks")


def _steps(model: nn.Module) -> list[nn.Linear | str]:
    """The operations on the input, in order."""
    if isinstance(model, nn.Linear):
        model = nn.Sequential(model)  # a leaf is not traced into
    try:
        graph = fx.Tracer().trace(model.train())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise NotAChainError(f"the model cannot be traced ({reason})") from error
    before: fx.Node | None = None
    steps: list[nn.Linear | str] = []
    for node in graph.nodes:
        if node.op == "placeholder" and before is None:
            before = node
            continue
        if node.all_input_nodes != [before]:
            raise NotAChainError("the model is not a plain chain of layers")
        before = node
        if node.op != "output":
            steps.append(_step(model, node))
    return steps


def _step(model: nn.Module, node: fx.Node) -> nn.Linear | str:
    if node.op == "call_module":
        return _of_module(model.get_submodule(str(node.target)))
    rest = (node.args[1:], {k: v for k, v in node.kwargs.items() if k != "inplace"})
    if node.op in ("call_function", "call_method"):
        if node.target in (torch.flatten, "flatten") and rest in (
            ((1,), {}),
            ((), {"start_dim": 1}),
        ):
            return "flatten"
        if node.target in _FUNCTIONS and rest == ((), {}):
            return _FUNCTIONS[node.target]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    raise NotAChainError(f"fused does not support {name}")


def _of_module(module: nn.Module) -> nn.Linear | str:
    if type(module) is nn.Linear:
        return module
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return "flatten"
    if type(module) is nn.Dropout and module.p == 0:
        return "identity"
    if type(module) in _MODULES:
        return _MODULES[type(module)]
    raise NotAChainError(f"fused does not support {type(module).__name__}")
