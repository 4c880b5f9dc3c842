"""How a round's updates become one mean per coordinate, along which the server optimizer steps.

The mean itself is a sum of integers and needs no more than that: a `Partial`. Rules that look at
each update, such as medians, read them block by block and give back something of the same form.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.partial import Floats, Key, Params, TensorSpec


class TooFewUpdatesError(ValueError):
    """A round cannot be reduced: too few updates came, or one that it takes did not come."""


class Means(Protocol):
    """What a server optimizer reads: a mean for each coordinate that somebody covered."""

    count: int
    """Updates in it."""

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that there may be means of."""

    def covered(self, key: Key) -> bool:
        """Return whether any update said anything about this tensor."""

    def mean_block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | bool]:
        """Return the means of the flat coordinates `start:stop`, and who has one.

        Returns:
            float64 [stop - start], 0 where nobody covered; and True or False for the whole block,
            or bool [stop - start].
        """

    def release(self, key: Key) -> None:
        """Say that this tensor's means are not needed again."""


class Updates(Protocol):
    """Every accepted update of a round, looked at block by block."""

    @property
    def clients(self) -> Sequence[str]:
        """Who sent them, n names, sorted; the order of everything else here."""

    @property
    def weights(self) -> Floats:
        """What each counts for, float64 [n], > 0."""

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that updates may speak about."""

    def covered(self, key: Key) -> bool:
        """Return whether any update said anything about this tensor."""

    def ranges(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield `(start, stop)` that tile the tensor, so small that n blocks fit in memory."""

    def block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | Literal[True]]:
        """Return the values of the flat coordinates `start:stop` in every update.

        Returns:
            float64 [n, stop - start], 0 where an update covers nothing; and which are covered,
            bool [n, stop - start], or True for all.
        """


class Aggregation(Protocol):
    """How updates become means."""

    needs: ClassVar[Literal["sum", "each"]]
    """Whether the sum of the updates is enough, or each one is looked at."""
    remembers: ClassVar[bool]
    """Whether `reduce` looks at the last round's means."""
    weighted: ClassVar[bool]
    """Whether updates count by their weights; otherwise every client counts once."""

    @property
    def min_updates(self) -> int:
        """The fewest updates that a round can be reduced from."""

    @property
    def name(self) -> str:
        """The name in the registry."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that rebuild this aggregation in the registry."""

    def reduce(self, updates: Updates, last: Params) -> Means:
        """Return the means of a round; only asked where each update is looked at.

        Args:
            updates: of the round.
            last: the means of the delta in the last round by tensor, where `remembers`; those of
                tensors that no round covered yet are missing.

        Raises:
            TooFewUpdatesError: fewer than `min_updates`, or one that the rule takes is missing.
        """


@dataclass(frozen=True, slots=True)
class Mean:
    """The weighted mean, from exact sums (McMahan et al. 2017)."""

    name: ClassVar[str] = "mean"
    needs: ClassVar[Literal["sum", "each"]] = "sum"
    remembers: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    min_updates: ClassVar[int] = 1

    def settings(self) -> dict[str, Any]:
        """Return no settings: there are none."""
        return {}

    def reduce(self, updates: Updates, last: Params) -> Means:  # noqa: ARG002 - the protocol's
        """Return the means in float64, where updates are at hand one by one.

        A round's own are those of its `Partial`, which are exact.
        """
        from fedloom.strategies.robust.base import LazyMeans, weighted  # noqa: PLC0415 - builds on this

        return LazyMeans(updates, weighted(updates.weights))
