"""Inference by a module with a received model's tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.client.torch import loop, modules
from fedloom.client.torch.client import TorchClient
from fedloom.protocol.errors import UsageError

Params = Mapping[str, NDArray[Any]]
BATCH = 256


def ready(target: nn.Module | TorchClient, params: Params) -> nn.Module:
    """The module with these tensors, in evaluation mode; a client's local tensors are kept.

    Raises:
        UsageError: the tensors are not the module's.
    """
    module = target.model if isinstance(target, TorchClient) else target
    modules.load(module, params, partial=isinstance(target, TorchClient))
    return module.eval()


@torch.no_grad()
def predict(target: nn.Module | TorchClient, params: Params, x: Any) -> NDArray[Any]:
    """A module's outputs for inputs, a tensor or an array with one example per row.

    Raises:
        UsageError: the tensors are not the module's, or the module does not return a tensor.
    """
    module = ready(target, params)
    device = loop.device_of(module)
    inputs = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    parts = [module(part.to(device)) for part in torch.split(inputs, BATCH)]
    if not all(isinstance(part, Tensor) for part in parts):
        raise UsageError(
            f"Expected a module that returns a tensor, got {type(parts[0]).__name__}. Use params() "
            "with your own code."
        )
    outputs: NDArray[Any] = torch.cat(parts).float().cpu().numpy()
    return outputs
