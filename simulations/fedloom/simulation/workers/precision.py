"""How models multiply: in float32, TF32 or bfloat16; weights, sums and updates stay as they are.

TF32 rounds the factors of a GPU's float32 products to 10 bits. With bfloat16 the forward pass is
under `torch.autocast`: products have 8 bits, and losses are float32.

Invariant: `float32` uses neither, and on a GPU only algorithms of cuDNN that give the same bits
each time, so that the number of workers changes none.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.protocol.errors import UsageError

_AMPERE = (8, 0)


def check_precision(precision: str, device: torch.device, *, own_code: bool) -> None:
    """Check that the device has this arithmetic.

    Raises:
        UsageError: it has not, or the clients' own code computes.
    """
    if precision == "float32":
        return
    if own_code:
        raise UsageError(
            f'Expected engine.precision = "float32" with [client], got {precision!r}: the '
            "clients' own code chooses its arithmetic."
        )
    if device.type == "cpu":
        if precision == "tf32":
            raise UsageError(
                'engine.precision = "tf32" needs a GPU; this simulation runs on the CPU. Use '
                '"float32", or set engine.device.'
            )
        return  # any CPU computes with bfloat16, if slowly
    name = torch.cuda.get_device_name(device)
    if torch.cuda.get_device_capability(device) < _AMPERE:
        raise UsageError(
            f"engine.precision = {precision!r} needs a GPU of compute capability 8.0 or higher; "
            f'{name} has less. Use "float32".'
        )


def set_precision(precision: str, device: torch.device) -> None:
    """Set this process's arithmetic on a GPU; nothing on a CPU."""
    if device.type != "cuda":
        return
    backends: Any = torch.backends  # whose stubs lack what follows
    backends.cudnn.benchmark = False
    backends.cudnn.deterministic = True
    tf32 = precision == "tf32"
    if not hasattr(backends.cudnn, "conv"):  # PyTorch before 2.9
        backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = tf32
        return
    kind = "tf32" if tf32 else "ieee"
    backends.cuda.matmul.fp32_precision = kind
    backends.cudnn.conv.fp32_precision = kind  # cuDNN's default is TF32
    backends.cudnn.rnn.fp32_precision = kind


def lowered(model: nn.Module) -> nn.Module:
    """The same module, changed so that its forward pass multiplies in bfloat16."""
    kind = type(model)
    # A class and not a wrapper or an attribute: names of parameters stay, and copies work.
    model.__class__ = type(kind.__name__, (_InBfloat16, kind), {"__module__": kind.__module__})
    return model


class _InBfloat16(nn.Module):
    def forward(self, *inputs: Tensor) -> Any:
        with torch.autocast(inputs[0].device.type, torch.bfloat16):
            output = super().forward(*inputs)
        return output.float()
