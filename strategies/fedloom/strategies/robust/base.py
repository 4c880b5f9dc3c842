"""The base of robust rules: they read every update and return means that are computed lazily.

A rule first computes distances or norms of the whole round (`geometry`) if it needs them. Its
result is lazy: each block is computed from the same block of every update, so that nothing of the
model's size is held, for any number of clients.

Invariants:
    - Clients are in the order of their names and coordinates are independent, in float64: the order
      of arrival and the sizes of blocks cannot change a bit.
    - Without any update the model does not change.
    - A coordinate that no update covers has no mean. For norms and distances an update is zero
      where it covers nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import NotedMeans, TooFewUpdatesError, Updates
from fedloom.strategies.exact.partial import Floats, Key, Params, TensorSpec

Covered: TypeAlias = NDArray[np.bool_] | Literal[True]
Reduced: TypeAlias = tuple[Floats, NDArray[np.bool_] | bool]
"""The means of a block, float64 [k], and which exist: bool [k], True or False for all."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One block of every update.

    Attributes:
        key: the tensor.
        start: flat coordinate of the first column.
        values: float64 [n, k], 0 where an update covers nothing.
        covered: bool [n, k], or True for all.
    """

    key: Key
    start: int
    values: Floats
    covered: Covered

    @property
    def width(self) -> int:
        """Number of coordinates, k."""
        return int(self.values.shape[1])


Combine: TypeAlias = Callable[[Window], Reduced]


class LazyMeans:
    """Means that are computed from the updates block by block, when they are read.

    Args:
        updates: of the round.
        combine: computes the means of one block.
        note: as in `NotedMeans`.
    """

    def __init__(self, updates: Updates, combine: Combine, note: str = "") -> None:
        self._updates = updates
        self._combine = combine
        self.count = len(updates.clients)
        self.note = note

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that may have means."""
        return self._updates.specs

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return self.count > 0 and self._updates.covered(key)

    def mean_block(self, key: Key, start: int, stop: int) -> Reduced:
        """Return the means of the flat coordinates `start:stop`, and which exist; see `Means`."""
        mean = np.zeros(stop - start)
        if not self.covered(key):
            return mean, False
        first, last = next(iter(self._updates.ranges(key)), (start, stop))
        step, everywhere = max(1, last - first), True
        has = np.ones(stop - start, np.bool_)
        for low in range(start, stop, step):
            high = min(low + step, stop)
            part, there = self._combine(Window(key, low, *self._updates.block(key, low, high)))
            at = slice(low - start, high - start)
            has[at] = there
            mean[at] = part if there is True else np.where(there, part, 0.0)
            everywhere = everywhere and there is True
        return mean, True if everywhere else has

    def release(self, key: Key) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """A rule that reads every update; the base of all rules in this package.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    name: ClassVar[str]
    needs: ClassVar[Literal["sum", "sessions", "each"]] = "each"
    remembers: ClassVar[bool] = False
    weighted: ClassVar[bool] = False
    """Whether updates count by their weights; otherwise every client counts once."""

    @property
    def min_updates(self) -> int:
        """The fewest updates that the rule accepts."""
        return 1

    def settings(self) -> dict[str, Any]:
        """Return the settings that rebuild this rule in the registry."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def reduce(self, updates: Updates, last: Params) -> NotedMeans:
        """Return the means of a round; see `Aggregation.reduce`.

        Raises:
            TooFewUpdatesError: fewer than `min_updates`, or a required one is missing.
        """
        count = len(updates.clients)
        if count and count < self.min_updates:
            raise TooFewUpdatesError(
                f"Expected at least {self.min_updates} updates for {self.name}, got {count}. Raise "
                f"cohort.quorum to {self.min_updates}."
            )
        return self._means(updates, last) if count else LazyMeans(updates, _nobody)

    def _means(self, updates: Updates, last: Params) -> LazyMeans:
        """Return the means of a round with updates."""
        return LazyMeans(updates, self._plan(updates, last))

    def _plan(self, updates: Updates, last: Params) -> Combine:
        """Examine the whole round; return a function that computes the means of one block."""
        raise NotImplementedError


def _nobody(window: Window) -> Reduced:
    return np.zeros(window.width), False


def weighted(weights: Floats, factors: Floats | None = None) -> Combine:
    """Return a function that computes `Σ w_i · c_i · x_i / Σ w_i` over covering updates, in order.

    Args:
        weights: w, float64 [n], >= 0; an update of weight 0 covers nothing.
        factors: c, float64 [n]; 1 by default.
    """
    chosen = [int(i) for i in np.flatnonzero(weights > 0)]
    parts = weights if factors is None else weights * factors

    def combine(window: Window) -> Reduced:
        values, covered = window.values, window.covered
        # Row by row: the order of addition of a matrix product depends on the library.
        total = np.zeros(window.width)
        for i in chosen:
            total += parts[i] * values[i]
        if covered is True:
            mass = float(sum(weights[i] for i in chosen))
            return (total / mass, True) if chosen else (total, False)
        masses = np.zeros(window.width)
        for i in chosen:
            masses += weights[i] * covered[i]
        there = masses > 0
        np.divide(total, masses, out=total, where=there)
        return total, there

    return combine
