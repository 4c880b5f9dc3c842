"""What a partitioner deals out, what it returns, and how counts become shards.

Invariants: a shard's indices ascend; shards are slices of one array, so a thousand clients cost no
more than one index per example.

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
    """Examples to deal out, with what a partitioner may go by.

    Attributes:
        examples: all of them.
        seed: the experiment's.
        clients: how many to deal to; None where the data decide.
        num_classes: K where targets are class numbers; None otherwise.
        owners: shape (N,), the id of whose each example is, such as a writer or a role; None where
            the data do not say.
        columns: names of the columns of x, where it has them.
    """

    examples: Examples
    seed: int
    clients: int | None = None
    num_classes: int | None = None
    owners: NDArray[np.generic] | None = None
    columns: Sequence[str] = ()

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.examples)

    def stream(self, purpose: str, index: int = 0) -> np.random.Generator:
        """Open this pool's random stream of one purpose."""
        return stream(self.seed, f"partition/{purpose}", index)

    def count(self, partitioner: str) -> int:
        """Return how many clients were asked for.

        Raises:
            UsageError: none, or more than there are examples.
        """
        if self.clients is None:
            raise UsageError(
                f"Expected a number of clients for the partitioner {partitioner!r}, got none. "
                "Set clients."
            )
        if not 1 <= self.clients <= len(self):
            raise UsageError(
                f"Expected from 1 client to one for each of {len(self)} examples, got "
                f"{self.clients} clients. Ask for fewer clients, or use more data."
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
                f"Expected one class number for each example, which the partitioner "
                f"{partitioner!r} goes by, got targets of {y.dtype} and shape {y.shape}. "
                "Take a partitioner that does not go by label: iid, natural, power-law, …"
            )
        return y.astype(np.int64, copy=False)

    def ids(self, partitioner: str) -> NDArray[np.generic]:
        """Return the owner of each example, shape (N,).

        Raises:
            UsageError: the data do not name owners.
        """
        if self.owners is None:
            raise UsageError(
                f"Expected data that say whose each example is, which the partitioner "
                f"{partitioner!r} goes by, got data without. Name their column (client = …), or "
                "take another partitioner."
            )
        return self.owners


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Examples dealt out.

    Attributes:
        shards: for each client the indices of its examples.
        names: of the clients, ascending; None where they have none of their own.
        examples: in place of the pool's, where the partitioner changes inputs.
    """

    shards: Shards
    names: Sequence[str] | None = None
    examples: Examples | None = None


class Partitioner(Protocol):
    """Deals examples out; a frozen dataclass whose fields are its settings."""

    def deal(self, pool: ExamplePool) -> Split:
        """Deal a pool out.

        Raises:
            UsageError: this pool cannot be dealt in this way.
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
    """Cut an order of examples into shards of these sizes; what is left goes to nobody."""
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
        UsageError: one is below 1, or they ask for more examples than there are.
    """
    if not sizes or min(sizes) < 1 or sum(sizes) > num_examples:
        raise UsageError(
            f"Expected sizes of at least 1 that come to at most {num_examples} examples, got "
            f"{len(sizes)} from {min(sizes, default=0)} to {max(sizes, default=0)}, {sum(sizes)} "
            "in all. Ask for less, or use more data."
        )
    return np.array(sizes, np.int64)
