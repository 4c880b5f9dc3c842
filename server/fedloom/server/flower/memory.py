"""The memory of a Flower strategy between rounds, as arrays that are stored beside the model.

Strategies keep their memory in attributes: momenta as dicts or lists of arrays, counters as
numbers. These are kept, for the strategy and the strategies that it wraps. Nothing is pickled:
other changed attributes are reset after each round, and their names are logged.

Invariant: `restore` after `capture` gives equal attributes, bit for bit.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.common import Parameters

from fedloom.strategies import Params

OF_THE_MODEL: Final = frozenset(
    {"current_arrays", "current_weights", "initial_parameters", "pre_weights"}
)
"""Attributes that are set from the model at the start of a round."""
_VALUE: Final = "value"


def capture(strategy: Any, fresh: Any) -> tuple[dict[str, Params], list[str]]:
    """The memory of a strategy after a round, compared with the strategy as it was loaded.

    Returns:
        Slots of arrays, and the names of changed attributes that cannot be kept.
    """
    slots: dict[str, Params] = {}
    lost = []
    for path, owner, other in _parts(strategy, fresh):
        for name, value in vars(owner).items():
            before = getattr(other, name, None)
            if name in OF_THE_MODEL or value is None or value is before:
                continue
            kind, arrays = _arrays(value)
            if kind:
                if kind != "number" or value != before:
                    slots[f"{kind}:{path}{name}"] = arrays
            elif not _same(value, before):
                lost.append(f"{path}{name}")
    return slots, sorted(lost)


def restore(strategy: Any, slots: Mapping[str, Params]) -> None:
    """Give a freshly loaded strategy the memory that `capture` made."""
    for slot, arrays in slots.items():
        kind, _, path = slot.partition(":")
        owner, names = strategy, path.split(".")
        for name in names[:-1]:
            owner = getattr(owner, name)
        setattr(owner, names[-1], _VALUES[kind](arrays))


_VALUES: Final[Mapping[str, Callable[[Params], Any]]] = {
    "number": lambda arrays: arrays[_VALUE].reshape(()).item(),
    "array": lambda arrays: np.array(arrays[_VALUE]),
    "dict": lambda arrays: {name: np.array(a) for name, a in arrays.items()},
    "list": lambda arrays: [np.array(arrays[str(i)]) for i in range(len(arrays))],
    "record": lambda arrays: ArrayRecord({n: Array(np.array(a)) for n, a in arrays.items()}),
}


def _arrays(value: Any) -> tuple[str, Params]:
    """The kind of a value and its arrays; empty if it cannot be kept."""
    if isinstance(value, bool | int | float | np.number):
        return "number", {_VALUE: np.asarray(value)}
    if isinstance(value, np.ndarray):
        return "array", {_VALUE: value}
    if isinstance(value, ArrayRecord):
        return "record", {name: array.numpy() for name, array in value.items()}
    if isinstance(value, dict) and value and _are_arrays(value.values(), value):
        return "dict", {name: np.asarray(a) for name, a in value.items()}
    if isinstance(value, list | tuple) and value and _are_arrays(value, ()):
        return "list", {str(place): np.asarray(a) for place, a in enumerate(value)}
    return "", {}


def _are_arrays(values: Any, names: Any) -> bool:
    arrays = all(isinstance(a, np.ndarray | np.floating | np.integer) for a in values)
    return arrays and all(isinstance(name, str) for name in names)


def _same(value: Any, before: Any) -> bool:
    """Whether a value that cannot be kept is unchanged; incomparable values count as unchanged."""
    if isinstance(value, Parameters) or callable(value) or _is_strategy(value):
        return True
    return not isinstance(value, str | bytes | list | dict | set | tuple) or value == before


def _parts(strategy: Any, fresh: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """A strategy and those that it wraps, each with its path and its loaded counterpart."""
    yield path, strategy, fresh
    for name, value in vars(strategy).items():
        if _is_strategy(value):
            yield from _parts(value, getattr(fresh, name), f"{path}{name}.")


def _is_strategy(value: Any) -> bool:
    return hasattr(value, "aggregate_train") or hasattr(value, "aggregate_fit")
