"""Mixed precision: the forward pass in 16 bits, parameters and their steps in 32.

Source: Micikevicius et al. 2018, Mixed Precision Training, https://arxiv.org/abs/1710.03740,
sections 3.1 (a master copy in float32) and 3.2 (scaling the loss, for fp16's short range).

Invariant: what is sent is float32; a step whose gradients overflowed changes nothing, neither for
the optimizer nor for the client rule.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fedloom.client.torch.schedules import Schedule
from fedloom.client.torch.steps import Correction, Stepper
from fedloom.protocol.errors import UsageError

Name = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How one training computes.

    Args:
        name: `fp32`, `bf16` or `fp16`.
        device: of the module.
    """

    def __init__(self, name: Name = "fp32", device: str = "cpu") -> None:
        self._dtype = _DTYPES.get(name)
        self._device = device
        self._scaler = torch.amp.GradScaler(device) if name == "fp16" else None

    def forward(self) -> AbstractContextManager[Any]:
        """Where a forward pass and its loss are computed."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients; those of fp16 are scaled until `step`."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped

    def step(self, optimizer: Stepper, params: list[nn.Parameter], correct: Correction) -> None:
        """Correct the gradients and take a step, unless they overflowed."""
        if self._scaler is None:
            correct()
            optimizer.step()
            return
        self._scaler.unscale_(optimizer)  # type: ignore[arg-type] # asks for param_groups alone
        grads = [param.grad for param in params if param.grad is not None]
        if all(bool(grad.isfinite().all()) for grad in grads):
            correct()
        self._scaler.step(optimizer)  # type: ignore[arg-type] # as above
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """How losses are scaled by now."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)


FULL = Precision()


@dataclass(frozen=True, slots=True)
class How:
    """What a device decides of its training beside what the task asks.

    Attributes:
        precision: of the forward pass.
        schedule: of the learning rate within the training; None: constant.
    """

    precision: Name = "fp32"
    schedule: Schedule | None = None


PLAIN = How()


def check(name: str, module: nn.Module, device: str) -> None:
    """Refuse a precision that does not exist, or not for this module.

    Raises:
        UsageError: says which there are.
    """
    if name not in get_args(Name):
        raise UsageError(f"Expected precision of {', '.join(get_args(Name))}, got {name!r}.")
    if name == "fp32":
        return
    narrow = {p.dtype for p in module.parameters() if p.is_floating_point()} - {torch.float32}
    if narrow:
        raise UsageError(
            f"Expected float32 parameters with precision={name!r}, which computes in 16 bits and "
            f"steps in 32, got {min(map(str, narrow))}. Leave the module in float32."
        )
    if device == "cuda" and name == "bf16" and not torch.cuda.is_bf16_supported():
        raise UsageError("Expected a GPU with bf16, got one without. Use precision='fp16'.")
