"""State of torch's global random generators."""

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """States of the CPU's generator and, on a GPU, of the device's."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Restore the states."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
