"""Whether clients of a model can be trained in one batch: its layers are checked, then it is tried.

Invariant: the answer depends only on the model and the population's first examples. The model, its
buffers and torch's generators are not changed.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedloom.simulation.data.population import Population

_NORMS = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the common base has no public name
_DROPOUTS = nn.modules.dropout._DropoutNd  # noqa: SLF001 - likewise


def why_not(model: nn.Module, population: Population | None) -> str:
    """Why clients cannot be batched; empty when they can.

    Args:
        model: not changed.
        population: its first two examples are tried; None for no trial.
    """
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, _NORMS):
            return f"{name} depends on the other examples of a batch, and batched pads batches"
        if isinstance(module, _DROPOUTS) and module.p > 0:
            return f"{name} needs separate random numbers for each client"
        if isinstance(module, nn.RNNBase):
            return f"{name} cannot be batched over clients by torch"
    if not any(param.requires_grad for param in model.parameters()):
        return "the model has no parameter to train"
    if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
        return "the model shares a parameter between layers"
    return "" if population is None else _tried(model, population)


def _tried(model: nn.Module, population: Population) -> str:
    device = next(model.parameters()).device
    x = torch.from_numpy(np.array(population.examples.x[:2])).to(device)
    was_training = model.training
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            return _trial(model.train(), x)
    finally:
        model.train(was_training)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _trial(model: nn.Module, x: Tensor) -> str:
    """Two clients with equal parameters and examples must give the output of one client."""
    before = [buffer.clone() for buffer in model.buffers()]
    params = {name: param.detach() for name, param in model.named_parameters()}
    twice = {name: param.expand(2, *param.shape) for name, param in params.items()}

    def forward(one: dict[str, Tensor], inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(model, one, (inputs,))
        return output

    try:
        whole = forward(params, x)
        single = forward(params, x[:1])
        stacked = vmap(forward)(twice, torch.stack([x, x]))
    except Exception as error:  # noqa: BLE001 - the model's own code may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return f"torch cannot batch the model over clients ({type(error).__name__}: {reason})"
    if any(not torch.equal(now, old) for now, old in zip(model.buffers(), before, strict=True)):
        return "the model changes its buffers in training"
    if not isinstance(whole, Tensor) or len(whole) != len(x):
        return "the model does not give one output for each example"
    if not torch.allclose(whole[:1], single, rtol=1e-3, atol=1e-5):
        return "an example's output depends on the other examples of its batch, or is random"
    if not torch.allclose(stacked[0], whole, rtol=1e-3, atol=1e-5):
        return "the model gives different outputs when it is batched over clients"
    return ""
