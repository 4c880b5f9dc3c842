"""Aggregation: from the updates of a round to one mean per coordinate.

The weighted mean needs only a sum of integers: a `Partial`. Rules that need each update, such as
medians, read the updates block by block and return means of the same form.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.partial import Floats, Key, Params, TensorSpec


class TooFewUpdatesError(ValueError):
    """A round cannot be aggregated: too few updates, or a required one is missing."""


class Means(Protocol):
    """The input of a server optimizer: a mean for each covered coordinate."""

    count: int
    """Number of updates."""

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that may have means."""

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""

    def mean_block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | bool]:
        """Return the means of the flat coordinates `start:stop`, and which have one.

        Returns:
            float64 [stop - start], 0 where no update covers; and True or False for the whole block,
            or bool [stop - start].
        """

    def release(self, key: Key) -> None:
        """Release this tensor's means: they are not read again."""


class NotedMeans(Means, Protocol):
    """Means that an aggregation computed from each update."""

    @property
    def note(self) -> str:
        """What operators should know of the computation, such as a limit that it reached.

        Empty for nothing. Complete when all means were read.
        """


class Updates(Protocol):
    """Every accepted update of a round, read block by block."""

    @property
    def clients(self) -> Sequence[str]:
        """The n senders, sorted; all arrays here are in this order."""

    @property
    def weights(self) -> Floats:
        """The weight of each, float64 [n], > 0."""

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that updates may hold."""

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""

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

    def one(self, number: int, key: Key) -> Floats | None:
        """Return a whole tensor of one update.

        Args:
            number: of the update, in the order of `clients`.
            key: the tensor.

        Returns:
            float64 [size], 0 where the update covers nothing; None if it covers no value.
        """


class Aggregation(Protocol):
    """How updates become means."""

    needs: ClassVar[Literal["sum", "sessions", "each"]]
    """Whether the strategy needs only the sum of the updates, those of masking sessions, or each
    update."""

    @property
    def remembers(self) -> bool:
        """Whether `reduce` reads the last round's means."""

    @property
    def weighted(self) -> bool:
        """Whether updates count by their weights; otherwise every client counts once."""

    @property
    def min_updates(self) -> int:
        """The fewest updates that `reduce` accepts."""

    @property
    def name(self) -> str:
        """The name in the registry."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that rebuild this aggregation in the registry."""

    def reduce(self, updates: Updates, last: Params) -> NotedMeans:
        """Return the means of a round; called only if the strategy needs each update.

        Args:
            updates: of the round.
            last: the means of the delta in the last round by tensor, if `remembers`; tensors that
                no round covered yet are missing.

        Raises:
            TooFewUpdatesError: fewer than `min_updates`, or a required one is missing.
        """


@dataclass(frozen=True, slots=True)
class Mean:
    """The weighted mean, from exact sums (McMahan et al. 2017)."""

    name: ClassVar[str] = "mean"
    needs: ClassVar[Literal["sum", "sessions", "each"]] = "sum"
    remembers: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    min_updates: ClassVar[int] = 1

    def settings(self) -> dict[str, Any]:
        """Return no settings: there are none."""
        return {}

    def reduce(self, updates: Updates, last: Params) -> NotedMeans:  # noqa: ARG002 - the protocol's
        """Return the means in float64, from separate updates.

        A round uses the exact means of its `Partial` instead.
        """
        from fedloom.strategies.robust.base import LazyMeans, weighted  # noqa: PLC0415 - builds on this

        return LazyMeans(updates, weighted(updates.weights))
