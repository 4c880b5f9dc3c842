"""Where torch's global random generators stand."""

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """Where the CPU's generator stands, and the device's where it has its own."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Go on from where they stood."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
