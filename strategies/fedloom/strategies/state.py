"""The state of a strategy between rounds: a value that can be stored with the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.partial import Params

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """The state of a strategy between rounds.

    Attributes:
        step: rounds finished so far.
        slots: slot name → tensor name → array of the tensor's shape. A tensor that no round has
            covered yet has no entry.
    """

    step: int = 0
    slots: Mapping[str, Params] = field(default_factory=dict)


def slots_to_arrays(slots: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return slots as flat arrays, "slot/tensor"."""
    return {
        f"{slot}/{tensor}": a for slot, tensors in slots.items() for tensor, a in tensors.items()
    }


def slots_from_arrays(arrays: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Rebuild the slots that `slots_to_arrays` wrote, without copying their arrays.

    Raises:
        ValueError: a name is not that of a slot.
    """
    slots: dict[str, dict[str, T]] = {}
    for name, array in arrays.items():
        slot, separator, tensor = name.partition("/")
        if not separator:
            raise ValueError(f"Expected names of the form slot/tensor, got {name}.")
        slots.setdefault(slot, {})[tensor] = array
    return slots


def state_to_arrays(state: State) -> dict[str, NDArray[Any]]:
    """Return the state as flat arrays: "step", int64 [], and "slot/tensor" for each slot."""
    return {"step": np.asarray(state.step, np.int64), **slots_to_arrays(state.slots)}


def state_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> State:
    """Rebuild the state that `state_to_arrays` wrote, without copying its arrays.

    Raises:
        ValueError: there is no step, or a name is not that of a slot.
    """
    if "step" not in arrays:
        raise ValueError(f"Expected an array named step, got {sorted(arrays)}.")
    slots = slots_from_arrays({name: a for name, a in arrays.items() if name != "step"})
    return State(step=int(arrays["step"].reshape(())), slots=slots)
