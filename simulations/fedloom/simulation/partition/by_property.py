"""Partitioners by owner, or by a real-valued property of an example.

Invariant: no example is in two shards.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.mapped import in_memory
from fedloom.simulation.partition.base import ExamplePool, Split, apportion, grouped
from fedloom.strategies.setting_checks import hint

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Natural:
    """One client for each owner: a writer, a speaking role, a device.

    As Flower Datasets' `NaturalIdPartitioner`. If the number of clients is smaller than that of
    owners, owners are drawn at random and the examples of the others are not used.

    Attributes:
        min_size: owners with fewer examples are not used; at least 1.
    """

    min_size: int = 1

    def __post_init__(self) -> None:
        if self.min_size < 1:
            raise UsageError(f"Expected min_size >= 1, got {self.min_size}.")

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        ids, owner = np.unique(pool.ids("natural"), return_inverse=True)
        sizes = np.bincount(owner)
        kept = np.flatnonzero(sizes >= self.min_size)
        if not len(kept):
            raise UsageError(
                f"No owner has min_size = {self.min_size} examples; the largest has {sizes.max()}. "
                "Lower min_size."
            )
        num_clients = len(kept) if pool.clients is None else pool.clients
        if not 1 <= num_clients <= len(kept):
            raise UsageError(
                f"Expected from 1 to {len(kept)} clients, the number of owners with at least "
                f"{self.min_size} examples, got {num_clients}. Set fewer clients, or lower "
                "min_size."
            )
        kept = np.sort(pool.stream("natural").permutation(kept)[:num_clients])
        names = client_names(ids[kept].tolist())
        if names is not None:
            kept = kept[sorted(range(num_clients), key=names.__getitem__)]
            names = sorted(names)
        number = np.full(len(ids), -1, np.int64)
        number[kept] = np.arange(num_clients)
        return Split(shards=grouped(number[owner], num_clients), names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedNatural:
    """Several owners per client, drawn at random.

    Flower Datasets' `GroupedNaturalIdPartitioner` groups neighbouring ids, sorted or in their
    order; here they are shuffled.

    Attributes:
        group_size: owners per client; default: owners are spread evenly over `clients`.
        remainder: use of owners that do not fill a group: one `smaller` group, groups `bigger` by
            one, or `drop`.
    """

    group_size: int | None = None
    remainder: Literal["smaller", "bigger", "drop"] = "smaller"

    def __post_init__(self) -> None:
        if self.group_size is not None and self.group_size < 1:
            raise UsageError(f"Expected group_size >= 1, got {self.group_size}.")

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        ids, owner = np.unique(pool.ids("grouped-natural"), return_inverse=True)
        sizes = self._sizes(len(ids), pool.clients)
        if pool.clients not in (None, len(sizes)) or not len(sizes):
            raise UsageError(
                f"Expected {pool.clients or 'one or more'} clients, got {len(sizes)} groups of "
                f"{self.group_size} from {len(ids)} owners. Omit clients or group_size."
            )
        group = np.full(len(ids), -1, np.int64)
        order = pool.stream("grouped-natural").permutation(len(ids))
        group[order[: int(sizes.sum())]] = np.repeat(np.arange(len(sizes)), sizes)
        return Split(shards=grouped(group[owner], len(sizes)))

    def _sizes(self, num_ids: int, num_clients: int | None) -> NDArray[np.int64]:
        if self.group_size is None:
            if num_clients is None or not 1 <= num_clients <= num_ids:
                raise UsageError(
                    f"Expected from 1 to {num_ids} clients, the number of owners, or a group_size, "
                    f"got {num_clients}. Set one of the two."
                )
            return apportion(num_ids, np.ones(num_clients))
        whole, rest = divmod(num_ids, self.group_size)
        if self.remainder == "bigger" and whole:
            return apportion(num_ids, np.ones(whole))
        last = [rest] if rest and self.remainder != "drop" else []
        return np.array([self.group_size] * whole + last, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """Sort examples by a real-valued property, blurred by noise, and cut into even shards.

    As Flower Datasets' `ContinuousPartitioner`: examples are sorted by σ·z + (1 − σ)·ε, where z is
    the property at mean 0 and deviation 1, and ε standard normal.

    Attributes:
        by: the property: `mean`, `deviation` or `norm` of the inputs of an example, `target`, or a
            column of the data by name or number, from 0.
        strictness: σ, from 0 (as `iid`) to 1 (sorted).
    """

    by: str | int = "mean"
    strictness: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.strictness <= 1:
            raise UsageError(f"Expected strictness from 0 to 1, got {self.strictness}.")

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        num_clients = pool.count("continuous")
        values = measured(pool, self.by)
        deviation = values.std()
        if not deviation > 0:
            raise UsageError(
                f"The property {self.by!r} has a deviation of {deviation} over the examples. "
                "Choose one that is finite and not constant."
            )
        noise = pool.stream("continuous").standard_normal(len(values))
        z = (values - values.mean()) / deviation
        order = np.argsort(self.strictness * z + (1 - self.strictness) * noise, kind="stable")
        owner = np.empty(len(values), np.int64)
        sizes = apportion(len(values), np.ones(num_clients))
        owner[order] = np.repeat(np.arange(num_clients), sizes)
        return Split(shards=grouped(owner, num_clients))


def measured(pool: ExamplePool, by: str | int) -> NDArray[np.float64]:
    """Measure a property of each example, shape (N,).

    Raises:
        UsageError: there is no such property.
    """
    if by == "target" and by not in pool.columns:
        if pool.examples.y.ndim != 1:
            raise UsageError(
                f"Expected one target for each example to sort by, got {pool.examples.y.shape}."
            )
        return pool.examples.y.astype(np.float64)
    inputs: NDArray[Any] = in_memory(pool.examples.x, "The partition continuous")
    x = inputs.reshape(len(pool), -1)
    if by in pool.columns:
        by = list(pool.columns).index(str(by))
    if isinstance(by, int):
        if not 0 <= by < x.shape[1]:
            raise UsageError(f"Expected a column from 0 to {x.shape[1] - 1}, got {by}.")
        return x[:, by].astype(np.float64)
    if by == "mean":
        return np.asarray(x.mean(axis=1, dtype=np.float64))
    if by in ("norm", "deviation"):
        # One pass, without a second array of x's size.
        squares = np.einsum("nd,nd->n", x, x, dtype=np.float64)
        if by == "norm":
            return np.asarray(np.sqrt(squares))
        mean = x.mean(axis=1, dtype=np.float64)
        return np.asarray(np.sqrt(np.maximum(squares / x.shape[1] - mean**2, 0)))
    known = hint(by, ["mean", "deviation", "norm", "target", *pool.columns[:20]])
    raise UsageError(f"Expected a property to sort by, or a column's number, got {by!r}. {known}")


def client_names(ids: Sequence[Any]) -> list[str] | None:
    """Make valid client names of ids; None if two names would be equal.

    >>> client_names(["First Citizen", "KING RICHARD II"])
    ['First-Citizen', 'KING-RICHARD-II']
    >>> client_names([3, 10])
    ['client-03', 'client-10']
    """
    if all(isinstance(id_, int) and id_ >= 0 for id_ in ids):
        width = len(str(max(ids)))
        return [f"client-{id_:0{width}}" for id_ in ids]
    names = [_NOT_IN_NAMES.sub("-", str(id_)).strip("-._")[:64] for id_ in ids]
    return names if all(names) and len(set(names)) == len(names) else None
