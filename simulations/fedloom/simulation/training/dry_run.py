"""Try a model and a loss on two examples of the data, before workers are set up.

Without this, a client in the first round would fail; with a model that cannot train on one example,
such as one with BatchNorm, a client in a later round whose last batch has one example; and with a
model that does not accept NaN, the client with the first NaN, whose update is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.client.torch import augment
from fedloom.protocol.errors import UsageError
from fedloom.protocol.user_code import summarised
from fedloom.simulation.data.population import Examples, Population
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.sources.finite import intact
from fedloom.strategies import RoundSettings

_TRIED = 2
"""Number of examples: a layer that normalises over the batch refuses a single one."""
_LOOKED = 64
"""Largest distance of a proposed batch size from the current one."""


def check_fit(experiment: Experiment, device: torch.device) -> None:
    """Refuse a model or a loss that fails on the data, on a batch of one example, or on NaN.

    Args:
        experiment: to run; not tried if its clients have their own code.
        device: to run on. It is tried on the CPU; a failure there is ignored for a GPU, which the
            model may need.

    Raises:
        UsageError: with the error of the model or the loss, and the data.
    """
    if experiment.client is not None:
        return
    population = experiment.population
    shard = np.resize(population.shards[int(population.sizes.argmax())], _TRIED)
    if population.num_classes is not None:  # a model with too few outputs fails on the last class
        labels = population.examples.y
        shard[-1] = labels.reshape(len(labels), -1).max(axis=1).argmax()
    x, y = _taken(population, population.examples, shard)
    try:
        with _trying(broadcast="error"):
            output = experiment.model().train()(x)
            loss: Any = experiment.loss(output, y)
    except Exception as error:
        if device.type != "cpu":
            return
        raise UsageError(
            f"The model or the loss fails on inputs {_kind(x)} and targets {_kind(y)}"
            f"{_classes(population)}: {summarised(error)}. Choose another model.name or "
            "model.loss, or other data."
        ) from error
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        came = f"a tensor of shape {tuple(loss.shape)}" if hasattr(loss, "shape") else repr(loss)
        raise UsageError(
            f"The loss must return one number, the mean over a batch; it returned {came}."
        )
    _check_is_mean(experiment.loss, output, y, loss)
    _check_alone(experiment)
    _check_finite(experiment)


def _check_is_mean(loss: Any, output: Any, y: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse a sum over a batch, and outputs that broadcast against targets: [N, 1] and [N]."""
    if getattr(loss, "reduction", "") == "sum":
        raise UsageError(
            "The loss must return the mean over a batch; it has reduction = 'sum'. Remove it."
        )
    if y.ndim != 1 or not y.is_floating_point() or getattr(output, "shape", 0) != (len(y), 1):
        return
    try:
        alike = loss(output.squeeze(-1), y)
    except Exception:  # noqa: BLE001 - the loss needs the second axis
        return
    if not torch.allclose(alike, value, rtol=1e-3, equal_nan=True):
        raise UsageError(
            f"Outputs of shape {list(output.shape)} broadcast against targets of shape "
            f"{list(y.shape)}: the loss is then {value.item():g}, but {alike.item():g} with "
            "outputs of the targets' shape. Remove the last axis: output.squeeze(-1)."
        )


def _check_alone(experiment: Experiment) -> None:
    """Refuse a model that fails on a batch of one example, if a client has such a batch."""
    spec, names = experiment.spec, experiment.population.names
    settings = spec.local_training().at(1, spec.round_config().goal)
    if spec.build_personal().head_epochs:
        settings = replace(settings, epochs=1, steps=None)  # whole epochs come before the steps
    sizes = experiment.population.sizes
    alone = _alone(sizes, settings)
    if not alone.any():
        return
    client = int(np.where(alone, sizes, sizes.max() + 1).argmin())
    x, y = _taken(
        experiment.population,
        experiment.population.examples,
        experiment.population.shards[client][:1],
    )
    try:
        with _trying(broadcast="ignore"):
            experiment.loss(experiment.model().train()(x), y)
    except Exception as error:
        size, batch = sizes[client], settings.batch_size
        holds = "1 example" if size == 1 else f"{size} examples in batches of {batch}"
        raise UsageError(
            f"The model fails on a batch of one example, which {alone.sum()} of {len(names)} "
            f"clients have, such as {names[client]} with {holds}: {summarised(error)}. "
            f"{_instead(experiment, settings)}, or use a model that accepts one example, with "
            "GroupNorm instead of BatchNorm."
        ) from error


def _alone(sizes: NDArray[np.int64], settings: RoundSettings) -> NDArray[np.bool_]:
    """Whether clients of these sizes have a batch of one example, the last of an epoch."""
    batch = np.minimum(settings.batch_size or sizes, sizes)
    per_epoch = -(-sizes // batch)
    steps = per_epoch if settings.steps is None else settings.steps
    alone: NDArray[np.bool_] = (batch == 1) | ((sizes % batch == 1) & (steps >= per_epoch))
    return alone


def _instead(experiment: Experiment, settings: RoundSettings) -> str:
    """Advice for settings without a batch of one example."""
    sizes, now = experiment.population.sizes, settings.batch_size
    if sizes.min() == 1:
        return "Give every client at least two: fewer clients, less skew, or a min_size"
    around = range(max(2, now - _LOOKED), now + _LOOKED)
    near = sorted(around, key=lambda size: (abs(size - now), -size))
    fits = (n for n in near if not _alone(sizes, replace(settings, batch_size=n)).any())
    name, times = "train.batch_size", 1
    if experiment.spec.local_training().global_batch_size is not None:
        name, times = "train.global_batch_size", experiment.spec.round_config().goal
    found = next(fits, None)
    return f"Set another {name}" if found is None else f"Set {name} = {found * times}"


def _check_finite(experiment: Experiment) -> None:
    """Refuse data with values that are not finite, unless the model and the loss accept them.

    A model may fill missing values, and a loss may mask them.
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
            "The data have NaN or infinity in "
            f"{', and in '.join(population.flaws)}, which leads to {came}. Fill these values, or "
            "remove the examples."
        )


def _trouble(
    experiment: Experiment, examples: Examples, held: NDArray[np.bool_], *, train: bool
) -> str:
    """The failure caused by the first such example that is used, tried with a finite one.

    Returns:
        A description; empty if there is no such example, or no failure.
    """
    whole = intact(examples.x) & intact(examples.y)
    flawed = np.flatnonzero(~whole & held)[:1]
    if not len(flawed):
        return ""
    x, y = _taken(
        experiment.population,
        examples,
        np.resize(np.append(flawed, np.flatnonzero(whole)[:1]), _TRIED),
    )
    try:
        with _trying(broadcast="ignore"):
            model = experiment.model().train()
            loss = experiment.loss(model(x), y)
            if train and loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    except Exception as error:  # noqa: BLE001 - the model's own code may raise anything
        return summarised(error)
    if not torch.isfinite(loss).all():
        return f"a loss of {loss.item():g}"
    grads = (param.grad for param in model.parameters() if param.grad is not None)
    return "" if all(torch.isfinite(grad).all() for grad in grads) else "gradients that are NaN"


def _taken(
    population: Population, examples: Examples, indices: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Some examples, transformed as in training.

    Raises:
        UsageError: a transform fails.
    """
    x, y = (torch.from_numpy(np.ascontiguousarray(a[indices])) for a in (examples.x, examples.y))
    if population.transform is None:
        return x, y
    draws = augment.Draws(0, 0, torch.arange(len(x)), len(x))
    try:
        return population.transform.train(x, draws), y
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"data.transform fails on inputs {_kind(x)}: {summarised(error)}. Change or remove it."
        ) from error


@contextmanager
def _trying(*, broadcast: Literal["error", "ignore"]) -> Iterator[None]:
    """Preserve torch's generators, and treat torch's warning of broadcast targets as given."""
    with torch.random.fork_rng(devices=[]), catch_warnings():
        filterwarnings(broadcast, message="Using a target size")
        yield


def _classes(population: Population) -> str:
    """The range of class numbers, in words; empty for other targets."""
    if population.num_classes is None:
        return ""
    return f" (classes 0 to {population.num_classes - 1})"


def _kind(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape[1:])}" if tensor.ndim > 1 else kind
