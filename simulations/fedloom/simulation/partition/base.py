"""The interface of partitioners, and helpers that turn sizes into shards.

Invariants: a shard's indices ascend; shards are slices of one array, so memory is one index per
example for any number of clients.

Legend: C clients, K classes, N examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.seeds import stream

Shards = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExamplePool:
    """Examples to split, with the information that partitioners may use.

    Attributes:
        examples: all examples.
        seed: of the experiment.
        clients: number of clients; None if the data decide.
        num_classes: K if targets are class numbers; None otherwise.
        owners: the owner's id of each example, such as a writer or a role, shape (N,); None if
            unknown.
        columns: names of the columns of x; empty if it has none.
    """

    examples: Examples
    seed: int
    clients: int | None = None
    num_classes: int | None = None
    owners: NDArray[np.generic] | None = None
    columns: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def stream(self, purpose: str, index: int = 0) -> np.random.Generator:
        """Open this pool's random stream of one purpose."""
        return stream(self.seed, f"partition/{purpose}", index)

    def count(self, partitioner: str) -> int:
        """Return the number of clients.

        Raises:
            UsageError: it is not set, or larger than the number of examples.
        """
        if self.clients is None:
            raise UsageError(
                f"The partitioner {partitioner!r} needs the number of clients. Set clients."
            )
        if not 1 <= self.clients <= len(self):
            raise UsageError(
                f"Expected from 1 to {len(self)} clients, as many as there are examples, got "
                f"{self.clients}. Set fewer clients, or use more data."
            )
        return self.clients

    def labels(self, partitioner: str) -> NDArray[np.int64]:
        """Return the class number of each example, shape (N,).

        Raises:
            UsageError: targets are not class numbers, one for each example.
        """
        y = self.examples.y
        if self.num_classes is None or y.ndim != 1:
            raise UsageError(
                f"The partitioner {partitioner!r} needs one class number for each example, got "
                f"targets of {y.dtype} and shape {y.shape}. Choose a partitioner that needs no "
                "labels, such as iid, natural or power-law."
            )
        return y.astype(np.int64, copy=False)

    def ids(self, partitioner: str) -> NDArray[np.generic]:
        """Return the owner of each example, shape (N,).

        Raises:
            UsageError: the data have no owners.
        """
        if self.owners is None:
            raise UsageError(
                f"The partitioner {partitioner!r} needs the owner of each example, and the data "
                "have none. Name the column of owners (client = …), or choose another partitioner."
            )
        return self.owners


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """The result of a partitioner.

    Attributes:
        shards: for each client the indices of its examples.
        names: of the clients, ascending; None for default names.
        examples: replace the pool's if the partitioner changes inputs; else None.
    """

    shards: Shards
    names: Sequence[str] | None = None
    examples: Examples | None = None


class Partitioner(Protocol):
    """Splits examples over clients; a frozen dataclass whose fields are its settings."""

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool.

        Raises:
            UsageError: this pool cannot be split in this way.
        """


def grouped(owner: NDArray[np.int64], num_clients: int) -> Shards:
    """Turn the owner of each example into shards.

    Args:
        owner: shape (N,), from 0 to C − 1; −1 for examples that no client gets.
        num_clients: C.
    """
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    unowned = int(np.count_nonzero(owner < 0))
    sizes = np.bincount(owner[order[unowned:]], minlength=num_clients)
    return tuple(np.split(order[unowned:], np.cumsum(sizes)[:-1]))


def shards_of_sizes(
    order: NDArray[np.int64], sizes: NDArray[np.int64], num_examples: int
) -> Shards:
    """Cut an order of examples into shards of these sizes; the rest is not used."""
    owner = np.full(num_examples, -1, np.int64)
    owner[order[: int(sizes.sum())]] = np.repeat(np.arange(len(sizes)), sizes)
    return grouped(owner, len(sizes))


def apportion(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Split a total in proportion, by largest remainder; the sum is exact.

    >>> apportion(10, np.array([1.0, 1.0, 1.0])).tolist()
    [4, 3, 3]
    """
    exact = weights / weights.sum() * total
    sizes: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(sizes - exact, kind="stable")
    sizes[by_remainder[: total - int(sizes.sum())]] += 1
    return sizes


def check_sizes(sizes: Sequence[int], num_examples: int) -> NDArray[np.int64]:
    """Return explicit sizes of shards as an array.

    Raises:
        UsageError: a size is below 1, or their sum is larger than the number of examples.
    """
    if not sizes or min(sizes) < 1 or sum(sizes) > num_examples:
        raise UsageError(
            f"Expected sizes of at least 1 with a sum of at most {num_examples} examples, got "
            f"{len(sizes)} from {min(sizes, default=0)} to {max(sizes, default=0)}, {sum(sizes)} "
            "in all. Set smaller sizes, or use more data."
        )
    return np.array(sizes, np.int64)
