"""Conversion between named tensors and Flower's records.

Flower's apps may name their arrays or number them. A list of arrays matches a model's tensors by
order: of their names if these are numbers, else of the model's file, which puts wider types first.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.common import Parameters, parameters_to_ndarrays
from numpy.typing import NDArray

from fedloom.client.api import Params
from fedloom.protocol.errors import UsageError

NUM_EXAMPLES = "num-examples"


def in_order(params: Mapping[str, NDArray[Any]]) -> list[str]:
    """The names of a model's tensors in the order of a list of arrays.

    >>> in_order({"10": np.ones(1), "2": np.ones(1)})
    ['2', '10']
    """
    if all(re.fullmatch(r"0|[1-9]\d*", name) for name in params):
        return sorted(params, key=int)
    return list(params)


def check_listable(params: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model whose file may have another order of tensors than the app's list.

    Raises:
        UsageError: the order is ambiguous.
    """
    widths = {value.dtype.itemsize for value in params.values()}
    if len(widths) > 1 and not all(name.isdecimal() for name in params):
        raise UsageError(
            "An app that takes a list of arrays needs a model of numbered tensors, or of one type, "
            "but the run's has named tensors of several types, without an order. Make the model "
            "from a list by `fedloom model init --flower`."
        )


def to_arrays(params: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A model as Flower's record, by name."""
    names = in_order(params)
    return ArrayRecord({n: Array(np.ascontiguousarray(params[n])) for n in names})


def from_arrays(record: ArrayRecord, params: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of an app's reply, by the model's names.

    Raises:
        UsageError: the arrays are numbered and do not match the model.
    """
    values = {name: np.asarray(array.numpy()) for name, array in record.items()}
    numbers = [str(i) for i in range(len(values))]
    if set(values) <= set(params) or set(values) != set(numbers):
        return values  # wrong names and shapes are refused before the update is sent
    check_listable(params)
    return from_list([values[i] for i in numbers], params)


def from_list(
    values: Sequence[NDArray[Any]], params: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """A list of arrays by the model's names.

    Raises:
        UsageError: the number of arrays differs, or a shape.
    """
    names = in_order(params)
    if len(values) != len(names):
        raise UsageError(
            f"Expected {len(names)} arrays from the Flower app, as many as the model's tensors, "
            f"got {len(values)}."
        )
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if np.shape(value) != params[name].shape:
            raise UsageError(
                f"Expected shape {params[name].shape} for {name!r}, array {place} from the Flower "
                f"app, got {np.shape(value)}."
            )
    return dict(zip(names, map(np.asarray, values), strict=True))


def metrics_of(records: Mapping[str, MetricRecord]) -> tuple[int | None, dict[str, float]]:
    """The number of examples, if given, and every other metric as a number.

    A list becomes one metric for each of its values: `name.0`, `name.1`, …

    >>> metrics_of({"": MetricRecord({"num-examples": 8, "loss": [0.5, 0.25]})})
    (8, {'loss.0': 0.5, 'loss.1': 0.25})

    Raises:
        UsageError: the number of examples is a list or below 0.
    """
    flat: dict[str, float] = {}
    for record in records.values():
        for name, value in record.items():
            if isinstance(value, list):
                flat |= {f"{name}.{i}": float(v) for i, v in enumerate(value)}
            else:
                flat[name] = float(value)
    found = flat.pop(NUM_EXAMPLES, None)
    if found is not None and found < 0:
        raise UsageError(f"Expected {NUM_EXAMPLES} >= 0 in the reply's MetricRecord, got {found}.")
    return None if found is None else int(found), flat


def initial(found: Any) -> Params:
    """As `fedloom.client.flower.initial`.

    Raises:
        UsageError: it has another type.
    """
    if isinstance(found, Parameters):
        found = parameters_to_ndarrays(found)
    elif isinstance(found, ArrayRecord):
        found = {name: array.numpy() for name, array in found.items()}
    elif hasattr(found, "state_dict"):
        found = {n: value.detach().cpu().numpy() for n, value in found.state_dict().items()}
    if isinstance(found, np.ndarray):
        found = [found]
    if isinstance(found, Sequence) and not isinstance(found, str):
        found = {str(place): value for place, value in enumerate(found)}
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, np.ndarray | np.generic)
        for name, value in found.items()
    ):
        raise UsageError(
            "Expected a torch module, an ArrayRecord, Parameters or arrays, or a function without "
            f"arguments that returns one, got a {type(found).__name__}."
        )
    return {name: np.asarray(value) for name, value in found.items()}
