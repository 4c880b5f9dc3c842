"""A server optimizer's step over every covered coordinate, a block of float64 at a time.

Invariants:
    - A coordinate that no update covers keeps its value and its slots, bit for bit.
    - Arithmetic is in float64 blocks; each result is rounded once, to its stored dtype.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Means
from fedloom.strategies.exact.partial import DELTA, Floats, Params

BLOCK: Final = 32_768
"""Coordinates changed at a time. Norms are sums of blocks: another size changes models' bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A closed round, as input of a server optimizer.

    Attributes:
        step: training rounds finished before it.
        count: updates in its means.
        scalars: weighted means of the clients' scalars, by name.
    """

    step: int = 0
    count: int = 0
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Block:
    """Some coordinates of one tensor, after a round.

    Attributes:
        mean: group → weighted mean of the clients' values, float64 [n]; 0 where no update covers.
        slots: slot → the optimizer's memory, float64 [n]; changed in place.
        values: the parameters, [n], in their stored dtype.
        closing: the round.
    """

    mean: Mapping[str, Floats]
    slots: dict[str, Floats]
    values: NDArray[Any]
    closing: Closing

    @property
    def delta(self) -> Floats:
        """The mean of trained minus received parameters."""
        return self.mean[DELTA]

    @property
    def param(self) -> Floats:
        """The parameters, as float64."""
        return self.values.astype(np.float64)


Change: TypeAlias = Callable[[Block], Floats]
"""Returns the change of a block's parameters; updates its slots in place."""

Ratio: TypeAlias = Callable[[float, float], float]
"""(norm of a tensor's parameters, norm of its change) → factor of the change."""


def blockwise(
    change: Change,
    model: Params,
    means: Means,
    slots: Mapping[str, Params],
    *,
    initial: Mapping[str, float] | None = None,
    groups: tuple[str, ...] = (DELTA,),
    closing: Closing | None = None,
    ratio: Ratio | None = None,
) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, NDArray[Any]]]]:
    """Apply an elementwise server optimizer to every coordinate whose delta is covered.

    Uses memory for the new model, the new slots and a few blocks; a draining partial frees each
    tensor's sums.

    Args:
        change: the optimizer on one block.
        model: the current parameters, of any float or integer dtype.
        means: of deltas and possibly other groups, for some or all tensors of the model.
        slots: the optimizer's memory, as in `State.slots`.
        initial: slot name → initial value.
        groups: of a block's means.
        closing: the round.
        ratio: scales the change of each tensor by norms over its covered coordinates, for which
            every block's change is computed twice.

    Returns:
        The new model and the new slots.

    Raises:
        OverflowError: a slot does not fit its dtype.
        TypeError: a covered tensor is neither of floats nor of integers.
        ValueError: the means do not match the model.
    """
    _check_fit(model, means)
    walk = _Walk(change, means, dict(initial or {}), groups, closing or Closing(), ratio)
    kept = {slot: dict(slots.get(slot, {})) for slot in walk.initial}
    new_model = dict(model)
    for tensor, value in model.items():
        if (DELTA, tensor) not in means.specs or not means.covered((DELTA, tensor)):
            continue
        old = {slot: kept[slot].get(tensor) for slot in kept}
        new_model[tensor], memory = walk.step(tensor, value, old)
        for slot, array in memory.items():
            kept[slot][tensor] = array
        for group in groups:
            means.release((group, tensor))
    return new_model, kept


@dataclass(frozen=True, slots=True)
class _Walk:
    """`blockwise`, tensor by tensor."""

    change: Change
    means: Means
    initial: Mapping[str, float]
    groups: tuple[str, ...]
    closing: Closing
    ratio: Ratio | None

    def step(
        self, tensor: str, value: NDArray[Any], slots: Mapping[str, NDArray[Any] | None]
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
                blocks = [
                    slice(start, min(start + BLOCK, flat.size))
                    for start in range(0, flat.size, BLOCK)
                ]
                scale = self._scale(tensor, blocks, flat, old)
                for at in blocks:
                    self._block(tensor, at, flat, new, old, memory, scale)
        except FloatingPointError as error:
            raise OverflowError(f"Expected the slots of {tensor} to fit, got: {error}.") from error
        shape = value.shape
        return new.reshape(shape), {slot: array.reshape(shape) for slot, array in memory.items()}

    def _block(  # noqa: PLR0917 - a block's share of step's arrays
        self,
        tensor: str,
        at: slice,
        flat: NDArray[Any],
        new: NDArray[Any],
        old: Mapping[str, NDArray[Any] | None],
        memory: Mapping[str, NDArray[Any]],
        scale: float,
    ) -> None:
        block, covered = self._at(tensor, at, flat, old)
        step = self.change(block)
        if scale != 1:
            step = scale * step
        new[at] = _where(covered, _plus(flat[at], _where(covered, step, 0.0)), flat[at])
        for slot, values in block.slots.items():
            before = _load(old[slot], at, self.initial[slot])
            memory[slot][at] = _where(covered, values, before)

    def _at(
        self, tensor: str, at: slice, flat: NDArray[Any], old: Mapping[str, NDArray[Any] | None]
    ) -> tuple[Block, NDArray[np.bool_] | bool]:
        """A block, and its covered coordinates."""
        mean, covered = self.means.mean_block((DELTA, tensor), at.start, at.stop)
        block = Block(
            mean={DELTA: mean} | {g: self._mean(g, tensor, at) for g in self.groups if g != DELTA},
            slots={slot: _load(array, at, self.initial[slot]) for slot, array in old.items()},
            values=flat[at],
            closing=self.closing,
        )
        return block, covered

    def _scale(
        self,
        tensor: str,
        blocks: Sequence[slice],
        flat: NDArray[Any],
        old: Mapping[str, NDArray[Any] | None],
    ) -> float:
        """The factor of the tensor's change."""
        if self.ratio is None:
            return 1.0
        squares = []
        for at in blocks:
            block, covered = self._at(tensor, at, flat, old)
            pair = block.param, self.change(block)
            # np.sum, not a dot product: BLAS sums in an order that depends on its threads.
            squares.append([float(np.sum(_where(covered, np.square(x), 0.0))) for x in pair])
        param_norm, change_norm = (
            math.sqrt(math.fsum(part)) for part in zip(*squares, strict=True)
        )
        return self.ratio(param_norm, change_norm)

    def _mean(self, group: str, tensor: str, at: slice) -> Floats:
        if not self.means.covered((group, tensor)):
            return np.zeros(at.stop - at.start)
        return self.means.mean_block((group, tensor), at.start, at.stop)[0]


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
    """Return value + change in value's dtype, rounded once and clipped to its range.

    An admitted sum can still exceed the range of float16 or of an integer; one client must not be
    able to end a round by that.
    """
    if value.dtype.kind == "f":
        largest = float(np.finfo(value.dtype).max)
        return np.clip(value.astype(np.float64) + change, -largest, largest).astype(value.dtype)
    # Integers are added as integers: counters can exceed 2^53, where float64 loses units.
    limits = np.iinfo(value.dtype)
    steps = np.clip(np.rint(change), -(2.0**62), 2.0**62).astype(np.int64)
    if value.dtype.itemsize < 8:
        small: NDArray[np.int64] = np.clip(value.astype(np.int64) + steps, limits.min, limits.max)
        return small.astype(value.dtype)
    total = value + steps.astype(
        value.dtype
    )  # may wrap, which shows as a change in the wrong direction
    total = np.where((steps > 0) & (total < value), limits.max, total)
    return np.where((steps < 0) & (total > value), limits.min, total).astype(value.dtype)


def _check_fit(model: Params, means: Means) -> None:
    for (group, tensor), spec in means.specs.items():
        if group != DELTA:
            continue
        if tensor not in model:
            raise ValueError(f"Expected deltas of the model's tensors, got {tensor}.")
        if model[tensor].shape != spec.shape:
            raise ValueError(f"Expected {tensor} of shape {model[tensor].shape}, got {spec.shape}.")
