"""What a federated algorithm is: a rule on the device, an exact sum, and a step on the server.

    client rule → updates → Partial (the sum) → Strategy.finish → the next model

A strategy is a frozen value; what it remembers between rounds is a `State`, also a value, that
can be written beside the model it belongs to.

Invariants:
    - `finish` is a pure function of its arguments: replaying a round gives the same bits.
    - A coordinate that nobody covered keeps its value and its slots, bit for bit.
    - Arithmetic is in float64 blocks; each result is rounded once, to the dtype it is kept in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.algebra import BLOCK, Floats, Params, Partial

DELTA: Final = "delta"
"""The group of updates to the parameters: trained minus received."""

Change: TypeAlias = Callable[[Floats, dict[str, Floats]], Floats]
"""(mean delta, slots) of a block → what to add to the parameters; updates the slots in place."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """What a strategy remembers between rounds.

    Attributes:
        step: rounds finished so far.
        slots: slot name → tensor name → array of the tensor's shape. A tensor that no round has
            covered yet has no entry.
    """

    step: int = 0
    slots: Mapping[str, Params] = field(default_factory=dict)


def state_to_arrays(state: State) -> dict[str, NDArray[Any]]:
    """Return the state as flat arrays: "step", int64 [], and "slot/tensor" for each slot."""
    arrays: dict[str, NDArray[Any]] = {"step": np.asarray(state.step, np.int64)}
    for slot, tensors in state.slots.items():
        arrays.update({f"{slot}/{tensor}": array for tensor, array in tensors.items()})
    return arrays


def state_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> State:
    """Rebuild the state that `state_to_arrays` wrote, without copying its arrays.

    Raises:
        ValueError: there is no step, or a name is not that of a slot.
    """
    if "step" not in arrays:
        raise ValueError(f"Expected an array named step, got {sorted(arrays)}.")
    slots: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        if name == "step":
            continue
        slot, separator, tensor = name.partition("/")
        if not separator:
            raise ValueError(f"Expected names of the form slot/tensor, got {name}.")
        slots.setdefault(slot, {})[tensor] = array
    return State(step=int(arrays["step"].reshape(())), slots=slots)


class ClientRule(Protocol):
    """What a device does differently from plain local training."""

    @property
    def name(self) -> str:
        """The name in the registry."""

    def settings(self) -> dict[str, float]:
        """Return the settings that rebuild this rule in the registry."""

    def gradient(self, grad: Any, param: Any, anchor: Any) -> Any:
        """Return the gradient to step with, for one tensor.

        Only arithmetic operators are used, so numpy arrays and torch tensors both work.

        Args:
            grad: gradient of the loss at `param`.
            param: the current parameters.
            anchor: the parameters as the server sent them.
        """


class Strategy(Protocol):
    """How a round's updates become the next model."""

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Whether the sum of the updates is enough, or each one is looked at."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of tensors that clients send."""

    @property
    def rule(self) -> ClientRule:
        """What the devices do."""

    def init(self, model: Params) -> State:
        """Return the state before the first round."""

    def finish(
        self, state: State, model: Params, partial: Partial
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next model and state from the sum of a round's updates.

        Tensors that nobody covered are returned as they came, the same arrays.

        Raises:
            OverflowError: the strategy's memory of a tensor does not fit its dtype.
            ValueError: the partial and the model do not belong together.
        """


def blockwise(
    change: Change,
    model: Params,
    partial: Partial,
    slots: Mapping[str, Params],
    *,
    initial: Mapping[str, float] | None = None,
) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, NDArray[Any]]]]:
    """Apply an elementwise server optimizer to every covered coordinate.

    Needs the memory of the new model, the new slots and a few blocks; a draining partial gives
    each tensor's sums back on the way.

    Args:
        change: the optimizer on one block.
        model: the current parameters, of any float or integer dtype.
        partial: sums of deltas for some or all tensors of the model.
        slots: the optimizer's memory, as in `State.slots`.
        initial: slot name → the value that a slot starts from.

    Returns:
        The new model and the new slots.

    Raises:
        OverflowError: a slot does not fit its dtype.
        TypeError: a covered tensor is neither of floats nor of integers.
        ValueError: the partial and the model do not belong together.
    """
    _check_fit(model, partial)
    names = dict(initial or {})
    kept = {slot: dict(slots.get(slot, {})) for slot in names}
    new_model = dict(model)
    for tensor, value in model.items():
        if (DELTA, tensor) not in partial.specs or not partial.covered((DELTA, tensor)):
            continue
        old = {slot: kept[slot].get(tensor) for slot in names}
        stepped, memory = _step_tensor(change, tensor, value, partial, old, names)
        new_model[tensor] = stepped
        for slot, array in memory.items():
            kept[slot][tensor] = array
        partial.release((DELTA, tensor))
    return new_model, kept


def _step_tensor(  # noqa: PLR0917 - one tensor's share of blockwise's arguments
    change: Change,
    tensor: str,
    value: NDArray[Any],
    partial: Partial,
    slots: Mapping[str, NDArray[Any] | None],
    initial: Mapping[str, float],
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return the new value and slots of one covered tensor."""
    if value.dtype.kind not in "fiu":
        raise TypeError(f"Expected {tensor} of floats or integers, got {value.dtype}.")
    flat = np.ascontiguousarray(value).reshape(-1)
    new = np.empty_like(flat)
    old = {slot: None if array is None else array.reshape(-1) for slot, array in slots.items()}
    memory = {slot: np.empty(flat.size, slot_dtype(value.dtype)) for slot in slots}
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise", under="ignore"):
            for start in range(0, flat.size, BLOCK):
                at = slice(start, min(start + BLOCK, flat.size))
                mean, covered = partial.mean_block((DELTA, tensor), at.start, at.stop)
                work = {slot: _load(array, at, initial[slot]) for slot, array in old.items()}
                step = change(mean, work)
                new[at] = _where(covered, _plus(flat[at], _where(covered, step, 0.0)), flat[at])
                for slot, block in work.items():
                    before = _load(old[slot], at, initial[slot])
                    memory[slot][at] = _where(covered, block, before)
    except FloatingPointError as error:
        raise OverflowError(f"Expected the slots of {tensor} to fit, got: {error}.") from error
    shape = value.shape
    return new.reshape(shape), {slot: array.reshape(shape) for slot, array in memory.items()}


def _where(covered: NDArray[np.bool_] | bool, new: NDArray[Any], old: Any) -> NDArray[Any]:
    """Return `new` where covered, else `old`; a whole block needs no copy."""
    return new if covered is True else np.where(covered, new, old)


def slot_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a tensor's slots: float32, or float64 where the tensor needs it."""
    return np.result_type(dtype, np.float32)


def _load(array: NDArray[Any] | None, at: slice, initial: float) -> Floats:
    if array is None:
        return np.full(at.stop - at.start, initial)
    return array[at].astype(np.float64)


def _plus(value: NDArray[Any], change: Floats) -> NDArray[Any]:
    """Return value + change in value's dtype, rounded once, at its limits where it is past them.

    A sum that passes the door can still carry a float16 or an integer over its end; one client
    must not be able to end everybody's round by that.
    """
    if value.dtype.kind == "f":
        largest = float(np.finfo(value.dtype).max)
        return np.clip(value.astype(np.float64) + change, -largest, largest).astype(value.dtype)
    # Whole numbers are added as such: counters can pass 2^53, where float64 ends.
    limits = np.iinfo(value.dtype)
    steps = np.clip(np.rint(change), -(2.0**62), 2.0**62).astype(np.int64)
    if value.dtype.itemsize < 8:
        small: NDArray[np.int64] = np.clip(value.astype(np.int64) + steps, limits.min, limits.max)
        return small.astype(value.dtype)
    total = value + steps.astype(value.dtype)  # may wrap, which shows as going the wrong way
    total = np.where((steps > 0) & (total < value), limits.max, total)
    return np.where((steps < 0) & (total > value), limits.min, total).astype(value.dtype)


def _check_fit(model: Params, partial: Partial) -> None:
    for (group, tensor), spec in partial.specs.items():
        if group != DELTA:
            continue
        if tensor not in model:
            raise ValueError(f"Expected deltas of the model's tensors, got {tensor}.")
        if model[tensor].shape != spec.shape:
            raise ValueError(f"Expected {tensor} of shape {model[tensor].shape}, got {spec.shape}.")
