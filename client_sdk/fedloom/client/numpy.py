"""Clients in plain numpy, or in any library that speaks it: a function makes a client.

    from fedloom.client import run
    from fedloom.client.numpy import gradient_client

    def gradient(params, x, y):
        error = x @ params["weight"] + params["bias"] - y
        return np.mean(error**2), {
            "weight": 2 * x.T @ error / len(x), "bias": 2 * np.mean(error, keepdims=True)
        }

    run(gradient_client(gradient, (x, y)), config="client.toml")

`gradient_client` takes the steps itself, so that every client rule, clipping, frozen tensors and
early stopping work. `fit_client` leaves the whole training to a function.

Sources: local training as in McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

Invariant: what a task returns depends on the parameters received, the task and the data alone.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Client, Metrics, Params, Task, Trained
from fedloom.client.data import Growing, Shard, as_shard
from fedloom.client.training.length import StopRule
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule, TensorAtStep

Array: TypeAlias = NDArray[Any]
Gradient: TypeAlias = Callable[[Params, Array, Array], tuple[float, Mapping[str, Array]]]
"""Of (params, x, y): a batch's mean loss, and its gradient by tensor."""
Measure: TypeAlias = Callable[[Params, Array, Array], Mapping[str, float]]
"""Of (params, x, y): means over a batch by name, such as loss and accuracy."""
Fit: TypeAlias = Callable[[Params, Shard, Task], "Mapping[str, Array] | Trained"]
"""Of (params, shard, task): the trained parameters, or all that `Client.train` returns."""


def gradient_client(
    gradient: Gradient,
    data: Any,
    *,
    held_out: Any = None,
    measure: Measure | None = None,
    initial: Params | None = None,
) -> "GradientClient":
    """Make a client that descends along gradients.

    Args:
        gradient: of (params, x, y); returns a batch's mean loss and its gradient by tensor. It
            must not change its arguments. Tensors that it leaves out are not trained.
        data: arrays (x, y), a shard of `fedloom.client.data`, or a data set with a length.
        held_out: likewise, to evaluate on, never trained on; None: nothing is evaluated here.
        measure: of (params, x, y); returns means over a batch, for evaluation; the loss of
            `gradient` where left out.
        initial: model that a run may begin with, for `fedloom model init`.

    Raises:
        UsageError: the data are not such, or have no example.
    """
    return GradientClient(gradient, data, held_out, measure, initial)


def fit_client(
    fit: Fit,
    data: Any,
    *,
    held_out: Any = None,
    measure: Measure | None = None,
    initial: Params | None = None,
) -> "FitClient":
    """Make a client that trains by a function of yours.

    Args:
        fit: of (params, shard, task); returns new parameters, which may be those it got, changed,
            or `(params, num_examples, metrics)`, or an `Update`. `shard.training(task.seed, …)`
            gives batches.
        data: as in `gradient_client`.
        held_out: likewise; needs `measure`.
        measure: likewise.
        initial: likewise.

    Raises:
        UsageError: the data are not such, or have no example, or `held_out` lacks `measure`.
    """
    if held_out is not None and measure is None:
        raise UsageError("Expected measure with held_out, got none: nothing could be evaluated.")
    return FitClient(fit, data, held_out, measure, initial)


class _NumpyClient(Client):
    def __init__(
        self, data: Any, held_out: Any, measure: Measure | None, initial: Params | None
    ) -> None:
        self._shard = as_shard(data)
        if not isinstance(self._shard, Growing):
            some(self._shard)
        self._held_out = None if held_out is None else as_shard(held_out)
        self._measure = measure
        self._initial = initial

    def initial(self) -> Params | None:
        """Model that a run may begin with, where the author gave one."""
        return self._initial

    def can_evaluate(self) -> bool:
        """Whether there is data to evaluate on."""
        return self._held_out is not None and len(self._held_out) > 0

    def _examples(self) -> Shard:
        """What there is to train on in this task."""
        return some(self._shard.fixed())

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:  # noqa: ARG002 - as asked
        """Evaluate the received parameters."""
        if self._held_out is None or self._measure is None:
            return 0, {}
        held_out = self._held_out.fixed()
        return len(held_out), mean_metrics(self._measure, params, held_out)


class FitClient(_NumpyClient):
    """Trains by the author's function; `fit_client` makes one."""

    def __init__(
        self,
        fit: Fit,
        data: Any,
        held_out: Any,
        measure: Measure | None,
        initial: Params | None,
    ) -> None:
        super().__init__(data, held_out, measure, initial)
        self._fit = fit

    def train(self, params: Params, task: Task) -> Trained:
        """Train by the function.

        Raises:
            UsageError: the run's client rule changes gradients, which only the function sees.
        """
        refuse_gradient_rules(task.rule, "a function that trains by itself", "gradient_client")
        shard = self._examples()
        if task.rule.needs_loss:
            if self._measure is None:
                raise UsageError(
                    f"Expected measure in fit_client, as the client rule {task.rule.name} asks "
                    "for the loss before training, got none. Give one that returns a loss."
                )
            before = mean_metrics(self._measure, params, shard)
            task.local.initial_loss = before["loss"]
        found = self._fit(params, shard, task)
        if isinstance(found, Mapping):
            return found, len(shard), {}
        return found


class GradientClient(_NumpyClient):
    """Descends along gradients; `gradient_client` makes one."""

    def __init__(
        self,
        gradient: Gradient,
        data: Any,
        held_out: Any,
        measure: Measure | None,
        initial: Params | None,
    ) -> None:
        self._loss_alone: Measure = partial(_loss_alone, gradient)
        super().__init__(data, held_out, measure or self._loss_alone, initial)
        self._gradient = gradient

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        """Evaluate the received parameters, or those of several that suit these examples best."""
        return super().evaluate(self._settled(params, task, self._shard.fixed()), task)

    def train(self, params: Params, task: Task) -> tuple[Params, int, dict[str, float]]:
        """Train from the received parameters.

        Returns:
            The tensors that have a gradient, the number of examples here, and the mean loss over
            the training.

        Raises:
            UsageError: a gradient does not fit its tensor, or the run asks for what only a
                module's training can do.
        """
        refuse_module_settings(task)
        shard = self._examples()
        params = self._settled(params, task, shard)
        task.local.steps = 0
        floats = {n for n in task.tensors(params) if params[n].dtype.kind == "f"}
        task.local.trainable = frozenset(floats - task.local.personal.kept(params))
        if task.rule.needs_loss or task.rule.needs_gradient:
            self._survey(params, task, shard)
        ats: dict[str, TensorAtStep] = {}
        if type(task.rule).gradient is not ClientRule.gradient:  # else nobody looks at the copies
            ats = {n: _at(task, n, params[n]) for n in task.local.trainable}
        total, seen, trained = 0.0, 0, set[str]()
        settings = task.settings
        stopping = StopRule(settings, len(shard), task.should_stop, report=task.progress)
        for x, y in shard.training(
            task.seed, settings.batch_size, epochs=settings.epochs, steps=settings.steps
        ):
            if stopping.should_stop():
                break
            loss, gradients = self._gradient(params, x, y)
            gradients = _clipped(_checked(gradients, params), settings.clip_norm)
            for name in floats & gradients.keys():
                grad = gradients[name]
                if name in ats:
                    grad = task.rule.gradient(grad, ats[name])
                params[name] -= (settings.learning_rate * grad).astype(params[name].dtype)
            trained |= floats & gradients.keys()
            task.local.steps += 1
            total, seen = total + float(loss) * len(y), seen + len(y)
            stopping.watch(float(loss), len(y))
        metrics = {"loss": total / seen} if seen else {}
        return {n: params[n] for n in trained}, len(shard), {**metrics, **task.local.told}

    def _settled(self, params: Params, task: Task, shard: Shard) -> Params:
        """The model of least loss here, where the rule has several (IFCA); else the received."""
        if not task.rule.picks:
            return params
        local, rule, measure = task.local, task.rule, self._loss_alone
        if local.cluster is None:  # one model after another: all of them may not fit into memory
            losses = [
                mean_metrics(measure, local.model(number, params, rule), shard)["loss"]
                for number in range(len(rule.groups))
            ]
            losses = [math.inf if math.isnan(value) else value for value in losses]
            local.cluster = losses.index(min(losses))
        chosen = local.model(local.cluster, params, rule)
        return {name: np.array(a) for name, a in chosen.items()}

    def _survey(self, params: Params, task: Task, shard: Shard) -> None:
        """Measure the mean loss over all examples and its gradient, which some rules ask for."""
        total, full = 0.0, dict[str, Array]()
        for x, y in shard.in_order():
            share = len(y) / len(shard)
            loss, gradients = self._gradient(params, x, y)
            total += float(loss) * share
            for name, grad in _checked(gradients, params).items():
                full[name] = full.get(name, 0.0) + share * grad
        task.local.initial_loss = total
        wanted = task.local.trainable or frozenset()
        task.local.full_gradient = {
            n: np.asarray(g, params[n].dtype) for n, g in full.items() if n in wanted
        }


def _loss_alone(gradient: Gradient, params: Params, x: Array, y: Array) -> Mapping[str, float]:
    return {"loss": float(gradient(params, x, y)[0])}


def mean_metrics(measure: Measure, params: Params, shard: Shard) -> dict[str, float]:
    """Means over all of a shard's examples, of what `measure` says of its batches."""
    totals: dict[str, float] = {}
    for x, y in shard.in_order():
        for name, value in measure(params, x, y).items():
            totals[name] = totals.get(name, 0.0) + float(value) * len(y)
    return {name: value / len(shard) for name, value in totals.items()}


def some(shard: Shard) -> Shard:
    """Return a shard that has examples.

    Raises:
        UsageError: it has none.
    """
    if not len(shard):
        raise UsageError("Expected at least one example to train on, got none.")
    return shard


def refuse_gradient_rules(rule: ClientRule, who: str, instead: str) -> None:
    """Refuse client rules that change or need the gradient of each step.

    Raises:
        UsageError: it is one.
    """
    changes = type(rule).gradient is not ClientRule.gradient
    if changes or rule.needs_gradient or rule.picks:
        raise UsageError(
            f"Expected a client rule that leaves gradients alone with {who}, got {rule.name}. "
            f"Train by {instead}, or run with another strategy or rule."
        )


def refuse_module_settings(task: Task) -> None:
    """Refuse what needs a module whose layers are known.

    Raises:
        UsageError: the task asks for it.
    """
    personal = task.local.personal
    asked = {
        "train.widths": task.width() != 1,
        "personal.head_epochs": bool(personal.head_epochs),
        "personal.name": personal.own_model is not None,
    }
    for name, wanted in asked.items():
        if wanted:
            raise UsageError(
                f"Expected a run without {name}, which only a PyTorch client can follow, got "
                "one that sets it. Train by fedloom.client.torch.TorchClient, or leave it out."
            )


def _at(task: Task, name: str, param: Array) -> TensorAtStep:
    received, memory = task.local.slots_of(task.rule, name, param.shape)

    def like(slots: dict[str, Array]) -> dict[str, Array]:
        return {slot: np.asarray(array, param.dtype) for slot, array in slots.items()}

    return TensorAtStep(
        param=param,
        anchor=np.array(param) if task.rule.needs_anchor else None,
        received=like(received),
        memory=like(memory),
        full_gradient=task.local.full_gradient.get(name),
    )


def _checked(gradients: Mapping[str, Array], params: Params) -> dict[str, Array]:
    found = {name: np.asarray(grad) for name, grad in gradients.items()}
    for name, grad in found.items():
        if name not in params:
            raise UsageError(
                f"Expected gradients of the model's tensors ({', '.join(list(params)[:8])}), got "
                f"one of {name!r}."
            )
        if grad.shape != params[name].shape:
            raise UsageError(
                f"Expected a gradient of shape {params[name].shape} for {name!r}, got {grad.shape}."
            )
    return found


def _clipped(gradients: dict[str, Array], clip_norm: float | None) -> dict[str, Array]:
    """Scale all gradients together down to a norm (Pascanu et al. 2013, algorithm 1)."""
    if clip_norm is None:
        return gradients
    norm = math.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values()))
    if norm <= clip_norm:
        return gradients
    return {name: grad * (clip_norm / norm) for name, grad in gradients.items()}
