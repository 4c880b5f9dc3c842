"""Findings about the results of `train` and `evaluate`.

`fedloom.client.update.validate` checks their form, as on a device. This module finds values that a
server would refuse, and updates without an effect.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Params, Update, Weighting
from fedloom.client.testing.asked import RunSettings
from fedloom.client.update import validate as form
from fedloom.client.update.validate import Finding, ReturnedError, number


def of_training(trained: Any, model: Params, run: RunSettings) -> Iterator[Finding]:
    """Findings about the result of `train`."""
    try:
        update = form.as_update(trained)
    except ReturnedError as error:
        yield error.finding
        return
    deltas = []
    for name, value in update.params.items():
        delta = yield from _tensor(name, value, model, run)
        deltas += [] if delta is None else [delta]
    yield from _together(deltas, bool(update.params), run)
    wrong = list(form.of_update(update, Weighting(run.weighting)))
    yield from wrong
    if not any(finding.check == "weight" for finding in wrong):
        yield from _weight(update, run)
    yield from _finite(update.metrics, "train")


def of_evaluation(returned: Any) -> Iterator[Finding]:
    """Findings about the result of `evaluate`."""
    try:
        num_examples, metrics = form.as_measured(returned)
    except ReturnedError as error:
        yield error.finding
        return
    yield from form.of_evaluation(num_examples, metrics)
    yield from _finite(metrics, "evaluate")


def _finite(metrics: Any, whence: str) -> Iterator[Finding]:
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        if (found := number(value)) is not None and not math.isfinite(found):
            yield Finding(
                "metrics",
                f"Expected a finite metric {name!r} from {whence}, got {found}. Leave it out where "
                "there is nothing to measure.",
            )


def _tensor(name: str, value: Any, model: Params, run: RunSettings) -> Any:
    """Check one tensor; returns its difference from the model's if it is valid."""
    try:
        _, *found = form.covered(name, value, model)
        values, old = map(np.asarray, found)
    except ReturnedError as error:
        yield error.finding
        return None
    if not np.isfinite(values).all():
        yield Finding(
            "finite",
            f"Expected finite values in {name!r} from train, got "
            f"{values[~np.isfinite(values)].flat[0]}. Lower the learning rate, clip gradients, or "
            "look for a division by zero.",
        )
        return None
    delta = values.astype(np.float64) - old.astype(np.float64)
    largest = float(np.abs(delta).max(initial=0))
    if largest > run.max_abs:
        yield Finding(
            "limits",
            f"Expected {name!r} to change by at most {run.max_abs:g}, got {largest:.3g}. Lower "
            "the learning rate, or raise the run's max_abs.",
        )
    return delta


def _together(
    deltas: list[NDArray[Any]], any_returned: bool, run: RunSettings
) -> Iterator[Finding]:
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


def _weight(update: Update, run: RunSettings) -> Iterator[Finding]:
    """Check a weight of the right form: it must be above 0 and within the run's limit."""
    count, weight = number(update.num_examples) or 0.0, number(update.weight) or 0.0
    if not count:
        yield Finding(
            "weight",
            "Expected num_examples from train above 0, got 0. Return how many it trained on.",
            "doubt",
        )
    if run.weighting == "examples" and count > run.max_weight:
        yield Finding(
            "weight",
            f"Expected at most {run.max_weight:g} examples, got {count:g}. Raise the run's "
            "max_weight, or weigh clients alike.",
        )
    if run.weighting == "client" and weight > run.max_weight:
        yield Finding(
            "weight",
            f"Expected a weight of at most {run.max_weight:g}, got {weight:g}. Raise the run's "
            "max_weight, or weigh clients less.",
        )
