"""Whether a model and a loss take the data, tried on two examples before workers are set up.

Without this, the first client of the first round would be the one to find out; where a model takes
no example alone, as BatchNorm does not, a client of a later one whose last batch is of one; and
where it takes no NaN, whoever holds the first, whose update is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.sources.finite import intact
from fedloom.simulation.workers.failures import told
from fedloom.strategies import RoundSettings

_TRIED = 2
"""Examples: a layer that normalises over the batch refuses one alone."""
_LOOKED = 64
"""How far from the size of batches one to propose is looked for."""


def check_fit(experiment: Experiment, device: torch.device) -> None:
    """Refuse a model or a loss that cannot take the data, a batch of one among them or a NaN.

    Args:
        experiment: to be run; one whose clients bring their own code is not tried.
        device: where it will run; it is tried on the CPU, and let be if it fails there but has a
            GPU, which it may need.

    Raises:
        UsageError: what the model or the loss said about which data.
    """
    if experiment.client is not None:
        return
    population = experiment.population
    shard = np.resize(population.shards[int(population.sizes.argmax())], _TRIED)
    x, y = _taken(population.examples, shard)
    try:
        with _trying(broadcast="error"):
            loss: Any = experiment.loss(experiment.model().train()(x), y)
    except Exception as error:
        if device.type != "cpu":
            return
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
    _check_finite(experiment)


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
    x, y = _taken(experiment.population.examples, experiment.population.shards[client][:1])
    try:
        with _trying(broadcast="ignore"):
            experiment.loss(experiment.model().train()(x), y)
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


def _check_finite(experiment: Experiment) -> None:
    """Refuse data with values that are not finite, where the model and the loss do not take them.

    A model may fill what is missing, a loss mask it.
    """
    population = experiment.population
    if not population.flaws:
        return
    held = np.zeros(len(population.examples), np.bool_)
    evaluated = (population.held_out_shards if experiment.spec.evaluate else None) or ()
    for shard in (*population.shards, *evaluated):
        held[shard] = True
    came = _trouble(experiment, population.examples, held, train=True)
    if not came and population.test is not None and experiment.test_every:
        everyone = np.ones(len(population.test), np.bool_)
        came = _trouble(experiment, population.test, everyone, train=False)
    if came:
        raise UsageError(
            "Expected finite data, or a model and a loss that take others, got NaN or infinity in "
            f"{', and in '.join(population.flaws)}, and from them {came}. Fill them, or drop those "
            "examples."
        )


def _trouble(
    experiment: Experiment, examples: Examples, held: NDArray[np.bool_], *, train: bool
) -> str:
    """What comes of the first example with such a value that is held, beside one without.

    Returns:
        In words; empty where there is none, or nothing comes of it.
    """
    whole = intact(examples.x) & intact(examples.y)
    flawed = np.flatnonzero(~whole & held)[:1]
    if not len(flawed):
        return ""
    x, y = _taken(examples, np.resize(np.append(flawed, np.flatnonzero(whole)[:1]), _TRIED))
    try:
        with _trying(broadcast="ignore"):
            model = experiment.model().train()
            loss = experiment.loss(model(x), y)
            if train and loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    except Exception as error:  # noqa: BLE001 - whatever the model's own code raises
        return told(error)
    if not torch.isfinite(loss).all():
        return f"a loss of {loss.item():g}"
    grads = (param.grad for param in model.parameters() if param.grad is not None)
    return "" if all(torch.isfinite(grad).all() for grad in grads) else "such gradients"


def _taken(examples: Examples, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of these examples."""
    x, y = (torch.from_numpy(np.ascontiguousarray(a[indices])) for a in (examples.x, examples.y))
    return x, y


@contextmanager
def _trying(*, broadcast: Literal["error", "ignore"]) -> Iterator[None]:
    """Leave torch's generators as they were, and take targets that are broadcast for this."""
    with torch.random.fork_rng(devices=[]), catch_warnings():
        filterwarnings(broadcast, message="Using a target size")  # by broadcasting, it says
        yield


def _said(tensor: torch.Tensor) -> str:
    """Of a batch, as a person names what one example is."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape[1:])}" if tensor.ndim > 1 else kind
