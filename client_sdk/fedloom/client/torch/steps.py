"""The interface of optimizers, and plain gradient descent."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from fedloom.protocol.errors import UsageError

Correction = Callable[[], None]
"""Changes gradients before the optimizer uses them."""


def nothing() -> None:
    """A correction that leaves gradients unchanged."""


class Stepper(Protocol):
    """The methods of an optimizer that training uses; every torch.optim.Optimizer has them."""

    def zero_grad(self) -> None:
        """Reset the gradients."""

    def step(self) -> Any:
        """Change the parameters along the gradients."""


class MakeOptimizer(Protocol):
    """Creates the optimizer of one task, such as `torch.optim.Adam` or a `partial` of it."""

    def __call__(self, params: Iterable[nn.Parameter], /, *, lr: float) -> Stepper:
        """Create the optimizer of these parameters with this learning rate."""


def check_step(stepper: Stepper) -> None:
    """Check that an optimizer needs no closure.

    Raises:
        UsageError: it computes the loss several times in a step.
    """
    needed = [
        name
        for name, each in inspect.signature(stepper.step).parameters.items()
        if each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    if needed:
        raise UsageError(
            f"Expected an optimizer whose step() needs no argument, got {type(stepper).__name__}, "
            f"which needs {', '.join(needed)}: it computes the loss several times in a step. Use "
            "another, such as torch.optim.Adam."
        )


class SGD:
    """Plain gradient descent.

    `torch.optim.SGD` does the same, but building any optimizer of torch.optim imports torch._dynamo
    and sympy: 1.4 CPU seconds and 70 MB for each client process (measured, torch 2.13).
    """

    def __init__(self, params: Iterable[nn.Parameter], /, *, lr: float) -> None:
        self._params = list(params)
        self.param_groups: list[dict[str, Any]] = [{"params": self._params, "lr": lr}]

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for param in self._params:
            param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Empty: it has no state, and a schedule sets the learning rate."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""

    @torch.no_grad()
    def step(self) -> None:
        """Take one step against the gradients."""
        rate = self.param_groups[0]["lr"]
        for param in self._params:
            if param.grad is not None:
                param.add_(param.grad, alpha=-rate)
