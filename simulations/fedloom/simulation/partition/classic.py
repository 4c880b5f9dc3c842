"""Splits of labelled examples over clients, IID or skewed by label.

Sources: the skew is a symmetric Dirichlet over labels with concentration `alpha`, as in Hsu, Qi,
Brown (2019), "Measuring the effects of non-identical data distribution for federated visual
classification", section 3. They draw a mix of labels for each client and fill clients of equal
size from it. Here, as in Yurochkin et al. (2019), "Bayesian nonparametric federated learning of
neural networks", section 4, each label is split over the clients: every example is used, and
clients differ in size, as real ones do.

Invariants: every example is in exactly one shard; the same seed gives the same shards.

Legend: C clients, K classes, N examples.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.partition.base import Shards, grouped
from fedloom.simulation.seeds import stream


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """The examples of each client.

    Attributes:
        shares: float64, shape (C, K): the share of each class's examples that each client gets;
            the column of a class sums to 1.
        shards: for each client the indices of its examples, ascending, int64.
    """

    shares: NDArray[np.float64]
    shards: Shards

    def counts(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the examples of each class on each client, int64 of shape (C, K)."""
        num_classes = self.shares.shape[1]
        return np.stack([np.bincount(labels[s], minlength=num_classes) for s in self.shards])


def iid(labels: NDArray[np.int64], *, num_clients: int, seed: int) -> Partition:
    """Split shuffled examples evenly: sizes differ by at most one.

    Args:
        labels: shape (N,).
        num_clients: number of shards, at least 1.
        seed: the same seed gives the same shards.

    Raises:
        UsageError: there are fewer examples than clients.
    """
    _check(labels, num_clients, min_size=1)
    order = stream(seed, "iid").permutation(len(labels))
    shards = tuple(np.sort(part).astype(np.int64) for part in np.array_split(order, num_clients))
    shares = np.full((num_clients, int(labels.max()) + 1), 1 / num_clients)
    return Partition(shares=shares, shards=shards)


def dirichlet(
    labels: NDArray[np.int64],
    *,
    num_clients: int,
    alpha: float,
    seed: int,
    min_size: int = 1,
    max_tries: int = 1000,
) -> Partition:
    """Split each class over the clients in proportions drawn from Dirichlet(alpha, …, alpha).

    Args:
        labels: shape (N,), classes 0 to K − 1.
        num_clients: number of shards, at least 1.
        alpha: concentration, above 0: towards 0 each class goes to one client; towards infinity
            every client gets the same share of each.
        seed: the same seed gives the same shards.
        min_size: draws that leave a client with fewer examples are repeated.
        max_tries: draws before the split is refused.

    Raises:
        UsageError: the arguments are out of range, or `max_tries` draws failed.
    """
    _check(labels, num_clients, min_size)
    if not 0 < alpha < np.inf:
        raise UsageError(f"Expected a finite alpha > 0, got {alpha}.")
    totals = np.bincount(labels)
    for attempt in range(max_tries):
        generator = stream(seed, "dirichlet", attempt)
        shares = generator.dirichlet(np.full(num_clients, alpha), size=len(totals)).T
        # Sizes follow from the shares: a draw that fails costs no shuffling.
        sizes = sum(_counts(shares[:, label], total) for label, total in enumerate(totals))
        if np.min(sizes) >= min_size:
            return Partition(shares=shares, shards=_deal(labels, shares, generator))
    raise UsageError(
        f"In {max_tries} draws with alpha={alpha} no split gave each of {num_clients} clients at "
        f"least {min_size} of {len(labels)} examples. Raise alpha, or set fewer clients or a "
        "smaller min_size."
    )


def follow(partition: Partition, labels: NDArray[np.int64], *, seed: int) -> Partition:
    """Split other examples by the same shares, such as the held-out ones of the same clients.

    Args:
        partition: whose shares to follow.
        labels: shape (M,), of the same classes.
        seed: the same seed gives the same shards.

    Raises:
        UsageError: a label is not among the partition's classes.
    """
    num_classes = partition.shares.shape[1]
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UsageError(f"Expected labels from 0 to {num_classes - 1}, got {labels.max()}.")
    shards = _deal(labels, partition.shares, stream(seed, "follow"))
    return Partition(shares=partition.shares, shards=shards)


def _deal(
    labels: NDArray[np.int64], shares: NDArray[np.float64], generator: np.random.Generator
) -> Shards:
    num_clients, num_classes = shares.shape
    owner = np.empty(len(labels), dtype=np.int64)
    for label in range(num_classes):
        members = generator.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(num_clients), _counts(shares[:, label], len(members)))
    return grouped(owner, num_clients)


def _counts(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    # Cuts are rounded from the cumulated shares, so that every example is used once.
    cuts = np.rint(np.cumsum(shares[:-1], axis=0) * total).astype(np.int64)
    return np.diff(cuts, prepend=0, append=total)


def _check(labels: NDArray[np.int64], num_clients: int, min_size: int) -> None:
    if num_clients < 1:
        raise UsageError(f"Expected num_clients >= 1, got {num_clients}.")
    if min_size < 0:
        raise UsageError(f"Expected min_size >= 0, got {min_size}.")
    if labels.ndim != 1 or not labels.size or labels.min() < 0:
        raise UsageError("Expected labels as a vector of class numbers from 0, at least one.")
    if len(labels) < num_clients * max(min_size, 1):
        raise UsageError(
            f"Expected at least {max(min_size, 1)} examples for each of {num_clients} clients, "
            f"got {len(labels)} in all."
        )
