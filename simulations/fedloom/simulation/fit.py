"""Whether a model and a loss take the data, tried on two examples before anybody is mustered.

Without this, the first client of the first round would be the one to find out; and where a model
takes no example alone, as BatchNorm does not, a client of a later one whose last batch is of one.
"""

from dataclasses import replace
from typing import Any, Literal
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.workers.failures import told
from fedloom.strategies import RoundSettings

_TRIED = 2
"""Examples: a layer that normalises over the batch refuses one alone."""
_LOOKED = 64
"""How far from the size of batches one to propose is looked for."""


def check_fit(experiment: Experiment, device: torch.device) -> None:
    """Refuse a model or a loss that cannot take the data, or a batch of one that is to come.

    Args:
        experiment: to be run; one whose clients bring their own code is not tried.
        device: where it will run; models on a GPU are not tried, as they may need it.

    Raises:
        UsageError: what the model or the loss said about which data.
    """
    if experiment.client is not None or device.type != "cpu":
        return
    population = experiment.population
    shard = np.resize(population.shards[int(population.sizes.argmax())], _TRIED)
    x, y = _taken(experiment, shard)
    try:
        loss = _loss(experiment, x, y, broadcast="error")
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
    _check_alone(experiment)


def _check_alone(experiment: Experiment) -> None:
    """Refuse a model that takes no example alone, where a client trains on one alone."""
    spec, names = experiment.spec, experiment.population.names
    settings = spec.local_training().at(1, spec.round_config().goal)
    if spec.build_personal().head_epochs:
        settings = replace(settings, epochs=1, steps=None)  # whole epochs come, then the steps
    sizes = experiment.population.sizes
    alone = _alone(sizes, settings)
    if not alone.any():
        return
    client = int(np.where(alone, sizes, sizes.max() + 1).argmin())
    x, y = _taken(experiment, experiment.population.shards[client][:1])
    try:
        _loss(experiment, x, y, broadcast="ignore")
    except Exception as error:
        size, batch = sizes[client], settings.batch_size
        holds = "1 example" if size == 1 else f"{size} examples in batches of {batch}"
        raise UsageError(
            f"Expected a model that can train on a batch of one example, which {alone.sum()} of "
            f"{len(names)} clients come to, such as {names[client]} with {holds}, got "
            f"{told(error)}. {_instead(experiment, settings)}, or have the model take one, as "
            "GroupNorm does in place of BatchNorm."
        ) from error


def _alone(sizes: NDArray[np.int64], settings: RoundSettings) -> NDArray[np.bool_]:
    """Whether clients of these sizes train on a batch of one example: the last of an epoch."""
    batch = np.minimum(settings.batch_size or sizes, sizes)
    per_epoch = -(-sizes // batch)
    steps = per_epoch if settings.steps is None else settings.steps
    alone: NDArray[np.bool_] = (batch == 1) | ((sizes % batch == 1) & (steps >= per_epoch))
    return alone


def _instead(experiment: Experiment, settings: RoundSettings) -> str:
    """What to set so that no batch is of one example."""
    sizes, now = experiment.population.sizes, settings.batch_size
    if sizes.min() == 1:
        return "Have every client hold two or more: fewer clients, less skew, or a min_size"
    around = range(max(2, now - _LOOKED), now + _LOOKED)
    near = sorted(around, key=lambda size: (abs(size - now), -size))
    fits = (n for n in near if not _alone(sizes, replace(settings, batch_size=n)).any())
    name, times = "train.batch_size", 1
    if experiment.spec.local_training().global_batch_size is not None:
        name, times = "train.global_batch_size", experiment.spec.round_config().goal
    found = next(fits, None)
    return f"Set another {name}" if found is None else f"Set {name} = {found * times}"


def _taken(experiment: Experiment, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of these examples."""
    examples = experiment.population.examples
    x, y = (torch.from_numpy(np.ascontiguousarray(a[indices])) for a in (examples.x, examples.y))
    return x, y


def _loss(
    experiment: Experiment,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    broadcast: Literal["error", "ignore"],
) -> Any:
    """The loss of the model in training, whose generators stay as they were."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), catch_warnings():
        filterwarnings(broadcast, message="Using a target size")  # by broadcasting, it says
        return experiment.loss(experiment.model().train()(x), y)


def _said(tensor: torch.Tensor) -> str:
    """Of a batch, as a person names what one example is."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape[1:])}" if tensor.ndim > 1 else kind
