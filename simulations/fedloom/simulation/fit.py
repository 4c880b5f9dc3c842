"""Whether a model and a loss take the data, tried on two examples before anybody is mustered.

Without this, the first client of the first round would be the one to find out.
"""

from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.workers.failures import told

_TRIED = 2
"""Examples: a layer that normalises over the batch refuses one alone."""


def check_fit(experiment: Experiment, device: torch.device) -> None:
    """Refuse a model or a loss that cannot take the data.

    Args:
        experiment: to be run; one whose clients bring their own code is not tried.
        device: where it will run; models on a GPU are not tried, as they may need it.

    Raises:
        UsageError: what the model or the loss said about which data.
    """
    if experiment.client is not None or device.type != "cpu":
        return
    population = experiment.population
    shard = population.shards[int(population.sizes.argmax())][:_TRIED]
    x, y = (_tensor(array[shard]) for array in (population.examples.x, population.examples.y))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), catch_warnings():
            filterwarnings("error", message="Using a target size")  # by broadcasting, it says
            loss: Any = experiment.loss(experiment.model().train()(x), y)
    except Exception as error:
        raise UsageError(
            f"Expected a model and a loss that take inputs {_said(x)} and targets {_said(y)}, got "
            f"{told(error)}. Choose another model.name or model.loss, or other data."
        ) from error
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        came = f"a tensor of shape {tuple(loss.shape)}" if hasattr(loss, "shape") else repr(loss)
        raise UsageError(
            f"Expected a loss that gives one number, the mean over a batch, got {came}."
        )


def _tensor(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _said(tensor: torch.Tensor) -> str:
    """Of a batch, as a person names what one example is."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape[1:])}" if tensor.ndim > 1 else kind
