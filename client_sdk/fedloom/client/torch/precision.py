"""Mixed precision: the forward pass in 16 bits, parameters and steps in 32 bits.

Source: Micikevicius et al. 2018, Mixed Precision Training, https://arxiv.org/abs/1710.03740,
sections 3.1 (a master copy in float32) and 3.2 (scaling the loss for fp16's short range).

Invariant: updates are float32; a step with overflowed gradients changes neither the optimizer nor
the client rule.
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
    """The precision of one training.

    Args:
        name: `fp32`, `bf16` or `fp16`.
        device: of the module.
    """

    def __init__(self, name: Name = "fp32", device: str = "cpu") -> None:
        self._dtype = _DTYPES.get(name)
        self._device = device
        self._scaler = torch.amp.GradScaler(device) if name == "fp16" else None

    def forward(self) -> AbstractContextManager[Any]:
        """The context for a forward pass and its loss."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients; with fp16 they are scaled until `step`."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped

    def step(self, optimizer: Stepper, params: list[nn.Parameter], correct: Correction) -> None:
        """Correct the gradients and take a step, unless the gradients overflowed."""
        if self._scaler is None:
            correct()
            optimizer.step()
            return
        self._scaler.unscale_(optimizer)  # type: ignore[arg-type] # it needs only param_groups
        grads = [param.grad for param in params if param.grad is not None]
        if all(bool(grad.isfinite().all()) for grad in grads):
            correct()
        self._scaler.step(optimizer)  # type: ignore[arg-type] # as above
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The state of the loss scale."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)


FULL = Precision()


@dataclass(frozen=True, slots=True)
class How:
    """The device's own settings of a training.

    Attributes:
        precision: of the forward pass.
        schedule: of the learning rate within the training; None for constant.
    """

    precision: Name = "fp32"
    schedule: Schedule | None = None


PLAIN = How()


def check(name: str, module: nn.Module, device: str) -> None:
    """Check a precision for a module.

    Raises:
        UsageError: the precision is unknown, or not supported for this module or device.
    """
    if name not in get_args(Name):
        raise UsageError(f"Expected precision of {', '.join(get_args(Name))}, got {name!r}.")
    if name == "fp32":
        return
    narrow = {p.dtype for p in module.parameters() if p.is_floating_point()} - {torch.float32}
    if narrow:
        raise UsageError(
            f"Expected float32 parameters with precision={name!r}, got {min(map(str, narrow))}. "
            "Keep the module in float32."
        )
    if device == "cuda" and name == "bf16" and not torch.cuda.is_bf16_supported():
        raise UsageError("This GPU does not support bf16. Use precision='fp16'.")
