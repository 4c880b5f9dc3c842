"""The clients of a simulation and their data.

Examples are in memory once, in two arrays; a client is a list of indices into them.

Invariants: every shard's indices are within the arrays; names are unique, in ascending order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError

if TYPE_CHECKING:  # torch is not needed to describe data
    from fedloom.client.torch.augment import Pipeline

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """Inputs and targets, one example per row.

    Attributes:
        x: of any dtype, shape (N, …); rows of a file (`fedloom.simulation.data.mapped`) are read
            when they are used.
        y: of any dtype, shape (N, …): class numbers, values, or the next token at each place.
    """

    x: NDArray[np.generic] = field(repr=False)
    y: NDArray[np.generic] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise UsageError(
                f"Expected one target for each of {len(self.x)} inputs, got {len(self.y)}."
            )

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Population:
    """All clients of a simulation.

    Attributes:
        examples: of all clients together.
        names: of the clients, ascending; cohorts are drawn in this order.
        shards: for each client the indices of the examples that it trains on, at least one.
        held_out_shards: for each client the indices of its held-out examples, may be empty; None
            if no client evaluates.
        test: central test examples, which no client holds; None for none.
        num_classes: if targets are class numbers; None for others.
        flaws: descriptions of values that are not finite, from the source.
        columns: names of the places of an input; empty if they have none.
        class_names: names of classes 0, 1, …; empty if they have none.
        transform: of inputs, in training and evaluation; None for none.

    Raises:
        UsageError: a client without examples, names that repeat, indices outside the examples, or
            a transform that does not support the inputs.
    """

    examples: Examples
    names: Sequence[str] = field(repr=False)
    shards: Sequence[Indices] = field(repr=False)
    held_out_shards: Sequence[Indices] | None = field(default=None, repr=False)
    test: Examples | None = None
    num_classes: int | None = None
    flaws: Sequence[str] = ()
    columns: Sequence[str] = ()
    class_names: Sequence[str] = ()
    transform: "Pipeline | None" = None

    def __post_init__(self) -> None:
        _ = self.input_shape  # refuses a transform of other inputs
        if not self.names:
            raise UsageError("Expected at least one client, got none.")
        if list(self.names) != sorted(set(self.names)):
            raise UsageError("Expected different names of clients in ascending order.")
        if len(self.names) != len(self.shards):
            raise UsageError(f"Expected {len(self.names)} shards, got {len(self.shards)}.")
        for name, shard in zip(self.names, self.shards, strict=True):
            if not len(shard):
                raise UsageError(
                    f"{name} has no examples. Set fewer clients, a less skewed partition, or a "
                    "min_size."
                )
            if shard.min() < 0 or shard.max() >= len(self.examples):
                raise UsageError(
                    f"Expected indices from 0 to {len(self.examples) - 1} for {name}, got "
                    f"{shard.min()} to {shard.max()}."
                )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as models get it."""
        x, y = self.examples.x, self.examples.y
        if self.transform is None:
            return x.shape[1:]
        return self.transform.output_shape(x.shape[1:], x.dtype.name, y.shape[1:])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training examples of each client, shape (clients,)."""
        return np.array([len(shard) for shard in self.shards], np.int64)


def numbered(count: int) -> list[str]:
    """Default names of clients in ascending order: `client-000` and so on."""
    width = max(3, len(str(count - 1)))
    return [f"client-{number:0{width}}" for number in range(count)]
