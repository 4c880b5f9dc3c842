"""What is wrong with what `train` and `evaluate` returned, each thing in one sentence."""

import math
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import MaskOf, Params, SliceOf, Update
from fedloom.client.testing.asked import Run
from fedloom.client.testing.findings import Finding
from fedloom.client.training import as_update
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Slice


def of_training(trained: Any, model: Params, run: Run) -> Iterator[Finding]:
    """What is wrong with what `train` returned."""
    try:
        update = as_update(trained)
    except UsageError as error:
        yield Finding("returns", str(error))
        return
    if not isinstance(update.params, Mapping):
        yield Finding(
            "returns",
            "Expected train to return arrays by name, got "
            f"{type(update.params).__name__}. Return a dict like the one that it received.",
        )
        return
    deltas = []
    for name, value in update.params.items():
        delta = yield from _tensor(name, value, model, run)
        deltas += [] if delta is None else [delta]
    yield from _together(deltas, bool(update.params), run)
    yield from _weight(update, run)
    yield from of_metrics(update.metrics, "train")


def of_evaluation(returned: Any) -> Iterator[Finding]:
    """What is wrong with what `evaluate` returned."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        yield Finding(
            "evaluate",
            "Expected evaluate to return (num_examples, metrics), got "
            f"{type(returned).__name__}. Return the number of examples and a dict.",
        )
        return
    num_examples, metrics = returned
    if not isinstance(num_examples, Integral) or num_examples < 0:
        yield Finding(
            "evaluate",
            f"Expected a whole number of examples >= 0 from evaluate, got {num_examples!r}. "
            "Return how many it measured.",
        )
    yield from of_metrics(metrics, "evaluate")


def of_metrics(metrics: Any, whence: str) -> Iterator[Finding]:
    """What is wrong with metrics."""
    if not isinstance(metrics, Mapping):
        yield Finding(
            "metrics",
            f"Expected metrics by name from {whence}, got {type(metrics).__name__}. Return a dict "
            "of floats, empty if there are none.",
        )
        return
    for name, value in metrics.items():
        if not isinstance(name, str):
            yield Finding(
                "metrics", f"Expected names of metrics from {whence}, got {name!r}. Use text."
            )
        elif not isinstance(value, Real | np.bool_):
            yield Finding(
                "metrics",
                f"Expected a float for the metric {name!r} from {whence}, got "
                f"{type(value).__name__}. Turn it into one by float(…).",
            )
        elif not math.isfinite(value):
            yield Finding(
                "metrics",
                f"Expected a finite metric {name!r} from {whence}, got {value}. Leave it out where "
                "there is nothing to measure.",
            )


def _tensor(name: str, value: Any, model: Params, run: Run) -> Any:
    """One tensor; returns its difference from the model's, if it is right so far."""
    if name not in model:
        known = ", ".join(list(model)[:8])
        yield Finding(
            "names",
            f"Expected tensors of the model ({known}), got {name!r} from train. Leave it out, or "
            "begin the run from a model that has it.",
        )
        return None
    old = model[name]
    values = np.asarray(value.values if isinstance(value, SliceOf | MaskOf) else value)
    if values.dtype.kind not in "fiu":
        yield Finding(
            "dtypes",
            f"Expected {name!r} in numbers from train, got {values.dtype}. Return it as "
            f"{old.dtype}.",
        )
        return None
    covered = _covered(value, values, old)
    if covered is None:
        yield Finding(
            "shapes",
            f"Expected shape {old.shape} for {name!r} from train, got {values.shape}. Return it "
            "in the shape that it came in, or as a SliceOf or MaskOf.",
        )
        return None
    if not np.isfinite(values).all():
        yield Finding(
            "finite",
            f"Expected finite values in {name!r} from train, got "
            f"{values[~np.isfinite(values)].flat[0]}. Lower the learning rate, clip gradients, or "
            "look for a division by zero.",
        )
        return None
    delta = covered[0].astype(np.float64) - covered[1].astype(np.float64)
    largest = float(np.abs(delta).max(initial=0))
    if largest > run.max_abs:
        yield Finding(
            "limits",
            f"Expected {name!r} to change by at most {run.max_abs:g}, got {largest:.3g}. Lower "
            "the learning rate, or raise the run's max_abs.",
        )
    return delta


def _covered(
    value: Any, values: NDArray[Any], old: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """New values and those of the model under them; None where they do not fit."""
    if isinstance(value, SliceOf):
        box = Slice(tuple((int(a), int(b)) for a, b in value.ranges))
        try:
            box.check(old.shape)
        except ValueError:
            return None
        under = old[tuple(slice(a, b) for a, b in box.ranges)]
        return (values, under) if values.shape == under.shape else None
    if values.shape != old.shape:
        return None
    if isinstance(value, MaskOf):
        bits = np.asarray(value.mask, np.bool_)
        return (values[bits], old[bits]) if bits.shape == old.shape else None
    return values, old


def _together(deltas: list[NDArray[Any]], any_returned: bool, run: Run) -> Iterator[Finding]:
    norm = math.sqrt(sum(float(np.square(delta).sum()) for delta in deltas))
    if not any_returned or (deltas and norm == 0):
        yield Finding(
            "learns",
            "Expected train to change the model, got "
            f"{'the values that it received' if any_returned else 'no tensor at all'}. Return the "
            "parameters after training, as new arrays or changed in place.",
        )
    if run.max_norm is not None and norm > run.max_norm:
        yield Finding(
            "limits",
            f"Expected a norm of at most {run.max_norm:g} of the whole change, got {norm:.4g}. "
            "Lower the learning rate, set train.clip_norm, or raise the run's max_norm.",
        )


def _weight(update: Update, run: Run) -> Iterator[Finding]:
    count = update.num_examples
    if not isinstance(count, Integral) or count <= 0:
        yield Finding(
            "weight",
            f"Expected a whole number of examples > 0 from train, got {count!r}. Return how many "
            "it trained on.",
        )
    elif run.weighting == "examples" and count > run.max_weight:
        yield Finding(
            "weight",
            f"Expected at most {run.max_weight:g} examples, got {count}. Raise the run's "
            "max_weight, or weigh clients alike.",
        )
    weight = update.weight
    if run.weighting == "client" and (
        not isinstance(weight, Real) or not 0 < weight <= run.max_weight
    ):
        yield Finding(
            "weight",
            f"Expected a weight above 0 and at most {run.max_weight:g} with weighting = "
            f'"client", got {weight!r}. Return an Update that has one.',
        )
