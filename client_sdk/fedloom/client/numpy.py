"""Clients in numpy, or in a library that exchanges numpy arrays, made from a function.

    from fedloom.client import run
    from fedloom.client.numpy import gradient_client

    def gradient(params, x, y):
        error = x @ params["weight"] + params["bias"] - y
        return np.mean(error**2), {
            "weight": 2 * x.T @ error / len(x), "bias": 2 * np.mean(error, keepdims=True)
        }

    run(gradient_client(gradient, (x, y)), config="client.toml")

`gradient_client` takes the steps itself, so that every client rule, clipping, frozen tensors and
early stopping work. `fit_client` calls a function for the whole training.

Sources: local training as in McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

Invariant: the result of a task depends only on the received parameters, the task and the data.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Client, Metrics, Params, Task, Trained
from fedloom.client.data import Growing, Shard, as_shard
from fedloom.client.training.adapter_scales import check_scales
from fedloom.client.training.length import StopRule, batches_of
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule, TensorAtStep

Array: TypeAlias = NDArray[Any]
Gradient: TypeAlias = Callable[[Params, Array, Array], tuple[float, Mapping[str, Array]]]
"""Of (params, x, y): a batch's mean loss, and its gradient by tensor."""
Measure: TypeAlias = Callable[[Params, Array, Array], Mapping[str, float]]
"""Of (params, x, y): means over a batch by name, such as loss and accuracy."""
Fit: TypeAlias = Callable[[Params, Shard, Task], "Mapping[str, Array] | Trained"]
"""Of (params, shard, task): the trained parameters, or any result of `Client.train`."""


def gradient_client(
    gradient: Gradient,
    data: Any,
    *,
    held_out: Any = None,
    measure: Measure | None = None,
    initial: Params | None = None,
) -> "GradientClient":
    """Make a client that trains by gradient descent.

    Args:
        gradient: of (params, x, y); returns a batch's mean loss and its gradient by tensor. It
            must not change its arguments. Tensors without a gradient are not trained.
        data: arrays (x, y), a shard of `fedloom.client.data`, or a data set with a length.
        held_out: data to evaluate on, never trained on; None: this client does not evaluate.
        measure: of (params, x, y); returns means over a batch, for evaluation. Default: the loss of
            `gradient`.
        initial: initial model of a run, for `fedloom model init`.

    Raises:
        UsageError: the data have another form, or no example.
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
    """Make a client whose whole training is a function.

    Args:
        fit: of (params, shard, task); returns new parameters (the received arrays may be changed
            and returned), `(params, num_examples, metrics)`, or an `Update`.
            `shard.training(task.seed, …)` yields batches.
        data: as in `gradient_client`.
        held_out: as in `gradient_client`; needs `measure`.
        measure: as in `gradient_client`.
        initial: as in `gradient_client`.

    Raises:
        UsageError: the data have another form, or no example, or `held_out` lacks `measure`.
    """
    if held_out is not None and measure is None:
        raise UsageError("Expected measure with held_out, got none: evaluation needs it.")
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
        """The initial model, if one was given."""
        return self._initial

    def can_evaluate(self) -> bool:
        """Whether there is data to evaluate on."""
        return self._held_out is not None and len(self._held_out) > 0

    def _examples(self) -> Shard:
        return some(self._shard.fixed())

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        """Evaluate the received parameters."""
        if self._held_out is None or self._measure is None:
            return 0, {}
        check_scales(task.local.adapters)
        held_out = self._held_out.fixed()
        return len(held_out), mean_metrics(self._measure, params, held_out)


class FitClient(_NumpyClient):
    """Trains with the author's function; `fit_client` makes one."""

    def __init__(
        self, fit: Fit, data: Any, held_out: Any, measure: Measure | None, initial: Params | None
    ) -> None:
        super().__init__(data, held_out, measure, initial)
        self._fit = fit

    def train(self, params: Params, task: Task) -> Trained:
        """Train with the function.

        Raises:
            UsageError: the run's client rule changes gradients, to which only the function has
                access.
        """
        refuse_gradient_rules(task.rule, "a fit function", "gradient_client")
        check_scales(task.local.adapters)
        shard = self._examples()
        if task.rule.needs_loss:
            if self._measure is None:
                raise UsageError(
                    f"Expected measure in fit_client, as the client rule {task.rule.name} needs "
                    "the loss before training, got none. Give one that returns a loss."
                )
            before = mean_metrics(self._measure, params, shard)
            task.local.initial_loss = before["loss"]
        found = self._fit(params, shard, task)
        if isinstance(found, Mapping):
            return found, len(shard), {}
        return found


class GradientClient(_NumpyClient):
    """Trains by gradient descent; `gradient_client` makes one."""

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
        """Evaluate the received model; of several, the one with the least loss here."""
        return super().evaluate(self._settled(params, task, self._shard.fixed()), task)

    def train(self, params: Params, task: Task) -> tuple[Params, int, dict[str, float]]:
        """Train from the received parameters.

        Returns:
            The tensors that have a gradient, the number of examples here, and the mean loss over
            the training.

        Raises:
            UsageError: a gradient does not fit its tensor, or the run has a setting that needs a
                PyTorch module.
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
        if type(task.rule).gradient is not ClientRule.gradient:  # otherwise the copies are not read
            ats = {n: _at(task, n, params[n]) for n in task.local.trainable}
        total, seen, trained = 0.0, 0, set[str]()
        settings = task.settings
        stopping = StopRule(
            settings, batches_of(len(shard), settings.batch_size), task.should_stop,
            report=task.progress,
        )  # fmt: skip
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
        return {n: params[n] for n in trained}, len(shard), {**metrics, **task.local.extra_metrics}

    def _settled(self, params: Params, task: Task, shard: Shard) -> Params:
        """The model of least loss here if the rule has several (IFCA); else the received one."""
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
        """Compute the mean loss over all examples and its gradient, which some rules need."""
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
    """Means of a measure over all examples of a shard."""
    totals: dict[str, float] = {}
    for x, y in shard.in_order():
        for name, value in measure(params, x, y).items():
            totals[name] = totals.get(name, 0.0) + float(value) * len(y)
    return {name: value / len(shard) for name, value in totals.items()}


def some(shard: Shard) -> Shard:
    """Check that a shard has examples, and return it.

    Raises:
        UsageError: it has none.
    """
    if not len(shard):
        raise UsageError("Expected at least one example to train on, got none.")
    return shard


def refuse_gradient_rules(rule: ClientRule, who: str, instead: str) -> None:
    """Refuse a client rule that changes or needs the gradient of each step.

    Raises:
        UsageError: the rule does.
    """
    changes = type(rule).gradient is not ClientRule.gradient
    if changes or rule.needs_gradient or rule.picks:
        raise UsageError(
            f"Expected a client rule that does not change gradients with {who}, got {rule.name}. "
            f"Use {instead}, or run with another strategy or rule."
        )


def refuse_module_settings(task: Task) -> None:
    """Refuse settings that need a PyTorch module.

    Raises:
        UsageError: the task has one.
    """
    check_scales(task.local.adapters)
    personal = task.local.personal
    asked = {
        "train.widths": task.width() != 1,
        "personal.head_epochs": bool(personal.head_epochs),
        "personal.name": personal.own_model is not None,
    }
    for name, wanted in asked.items():
        if wanted:
            raise UsageError(
                f"Expected a run without {name}, which needs a PyTorch client, got one that sets "
                "it. Use fedloom.client.torch.TorchClient, or remove the setting."
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
