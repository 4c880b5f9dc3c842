"""Metrics by users' own functions, over the outputs of a client's examples or of all test examples.

A function gets all outputs at once, not batch by batch: the area under a curve of a whole is no
mean over its parts. Its result depends only on the model and the examples, so the number of workers
changes no bit of it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedloom.client.torch import loop
from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.header import MAX_METRICS, MAX_NAME
from fedloom.protocol.user_code import summarised
from fedloom.simulation.kernels.base import Scores
from fedloom.simulation.signature import check_takes

Value: TypeAlias = float | Tensor | np.generic | Mapping[str, "Value"] | None
Metric: TypeAlias = Callable[[Tensor, Tensor], Value]
"""Maps outputs [N, …] of the model and targets [N, …], on the CPU, to a number, or to numbers by
name. None: the metric is undefined for these examples."""

_ONLY_ON_TEST = "only_on_test"
MEASURED = ("loss", "accuracy", "num_examples")
"""Names that every evaluation has."""


def only_on_test(metric: Metric) -> Metric:
    """Mark a metric that knows the test examples one by one: clients do not measure it."""
    setattr(metric, _ONLY_ON_TEST, True)
    return metric


def of_clients(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics that clients measure on their held-out examples."""
    return {name: each for name, each in metrics.items() if not hasattr(each, _ONLY_ON_TEST)}


def check_metrics(metrics: Mapping[str, Metric]) -> None:
    """Refuse functions that cannot be metrics, and names that records cannot hold.

    Raises:
        UsageError: names the metric.
    """
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"Expected metrics as a mapping from names to functions, got {type(metrics).__name__}. "
            'Write metrics={"f1": my_function}.'
        )
    if len(metrics) > MAX_METRICS - len(MEASURED):
        most = MAX_METRICS - len(MEASURED)
        raise UsageError(f"Expected at most {most} metrics, got {len(metrics)}.")
    for name, function in metrics.items():
        check_name(name)
        if name in MEASURED:
            raise UsageError(
                f"Every evaluation measures {name!r} itself. Choose another name of the metric."
            )
        check_takes(f"The metric {name!r}", function, "outputs", "targets")


def check_name(name: object) -> None:
    """Refuse a name that records cannot hold.

    Raises:
        UsageError: it is no text, or too long, or has characters that cannot be shown.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise UsageError(
            f"Expected names of metrics of 1 to {MAX_NAME} printable characters, got {name!r}."
        )


class Recorded:
    """A loss that keeps the outputs and targets of the batches that it gets."""

    def __init__(self, loss: loop.Loss) -> None:
        self._loss = loss
        self._batches: list[tuple[Any, Tensor]] = []

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """The loss of a batch."""
        self._batches.append((output, target))
        return self._loss(output, target)

    def scores(self, start: int = 0) -> Scores:
        """All outputs and targets as arrays.

        Raises:
            UsageError: outputs are no tensors, or cannot be joined.
        """
        outputs, targets = zip(*self._batches, strict=True)
        other = next((each for each in outputs if not isinstance(each, Tensor)), None)
        if other is not None:
            raise UsageError(
                "Metrics need a model whose output is one tensor, got "
                f"{type(other).__name__}. Return a tensor from forward, or measure in on_round."
            )
        try:
            return Scores(start, _array(torch.cat(outputs)), _array(torch.cat(targets)))
        except RuntimeError as error:
            raise UsageError(
                f"The outputs of the batches cannot be joined for metrics: {error}. Pad them to "
                "one shape, or measure in on_round."
            ) from None


def measured(
    metrics: Mapping[str, Metric], scores: Scores, loss: float, of: str
) -> dict[str, float]:
    """The metrics that are defined for these examples.

    Args:
        metrics: functions by name.
        scores: outputs and targets of all examples.
        loss: mean over them. If it is not finite, the model diverged: every metric is then NaN,
            and no function is called.
        of: whose examples, for errors.

    Raises:
        UsageError: a function raised, returned something else than finite numbers, or two numbers
            have one name; names the metric.
    """
    if not math.isfinite(loss):
        return dict.fromkeys(metrics, math.nan)
    found: dict[str, float] = {}
    for name, function in metrics.items():
        # Copies: a function that changes its arguments changes no other metric.
        given = torch.from_numpy(scores.outputs.copy()), torch.from_numpy(scores.targets.copy())
        try:
            value = function(*given)
        except Exception as error:
            raise UsageError(
                f"The metric {name!r} failed on {of}: {summarised(error)}. Correct the function; "
                "where a metric is undefined, such as for one class, it returns None."
            ) from error
        for key, number in numbers(name, value, of):
            if key in found:
                raise UsageError(
                    f"Two numbers of the metrics have the name {key!r}. Rename a metric, or a key."
                )
            found[key] = number
    return found


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of all parts, in the order of the examples."""
    ordered = sorted(parts, key=lambda part: part.start)
    return Scores(
        ordered[0].start,
        np.concatenate([part.outputs for part in ordered]),
        np.concatenate([part.targets for part in ordered]),
    )


def numbers(name: str, value: Any, of: str, *, finite: bool = True) -> Iterator[tuple[str, float]]:
    """The numbers that a function returned, by name; those in a mapping as `name/key`.

    Args:
        name: of the metric.
        value: that the function returned.
        of: what it measured, for errors.
        finite: refuse NaN and infinities.

    Raises:
        UsageError: the value is something else.
    """
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers(f"{name}/{key}", inner, of, finite=finite)
        return
    if getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, int | float) or (finite and not math.isfinite(value)):
        came = f"{value}" if isinstance(value, int | float) else _kind(value)
        raise UsageError(
            f"The metric {name!r} returned {came} on {of}: expected a finite number, numbers by "
            "name, or None where the metric is undefined. Correct the function."
        )
    yield name, float(value)


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
