"""Partitioners that shuffle the examples and cut them into shards of given sizes.

Sources: `linear`, `square` and `exponential` are the sizes of Flower Datasets' partitioners of the
same names. Here sizes are rounded by largest remainder; there down, with the rest for the last.

Invariants: every example is in exactly one shard (`sizes` may not use all); within a shard
examples are a uniform draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.partition.base import (
    ExamplePool,
    Split,
    apportion,
    check_sizes,
    shards_of_sizes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iid:
    """Equal sizes: they differ by at most one."""

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        return _weighted(pool, "iid", np.ones(pool.count("iid")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Given sizes; examples beyond their sum are not used.

    Attributes:
        sizes: of each client, at least 1.
    """

    sizes: Sequence[int]

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        if pool.clients not in (None, len(self.sizes)):
            raise UsageError(
                f"Expected one size for each of {pool.clients} clients, got {len(self.sizes)}. "
                "Omit clients, or make both equal."
            )
        sizes = check_sizes(self.sizes, len(pool))
        order = pool.stream("sizes").permutation(len(pool))
        return Split(shards=shards_of_sizes(order, sizes, len(pool)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Client i of C, from 0, gets a share in proportion to i + 1."""

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        return _weighted(pool, "linear", np.arange(1.0, pool.count("linear") + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """Client i of C, from 0, gets a share in proportion to (i + 1)²."""

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        return _weighted(pool, "square", np.arange(1.0, pool.count("square") + 1) ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Client i gets a share in proportion to exp(rate · i).

    Attributes:
        rate: above 0. At 1, Flower Datasets' only value, ten clients span a factor of 8,000.
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        _positive("rate", self.rate)

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        numbers = np.arange(pool.count("exponential"), dtype=np.float64)
        # Relative to the largest, to avoid overflow.
        weights = np.exp(self.rate * (numbers - numbers[-1]))
        return _weighted(pool, "exponential", weights, "Lower rate, or set fewer clients.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Every client gets `min_size` examples; the rest is split in proportion to (i + 1)^−a.

    Such sizes are typical of data made by people. Li et al. (2020), "Federated optimization in
    heterogeneous networks", section 5.1, use power-law sizes.

    Attributes:
        exponent: a, above 0; at 1 the first client's share is twice the second's.
        min_size: of every client, at least 1.
    """

    exponent: float = 1.0
    min_size: int = 1

    def __post_init__(self) -> None:
        _positive("exponent", self.exponent)
        if self.min_size < 1:
            raise UsageError(f"Expected min_size >= 1, got {self.min_size}.")

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        num_clients = pool.count("power-law")
        rest = len(pool) - num_clients * self.min_size
        if rest < 0:
            raise UsageError(
                f"Expected at least {self.min_size} examples for each of {num_clients} clients, "
                f"got {len(pool)} in all. Lower min_size, or set fewer clients."
            )
        weights = np.arange(1.0, num_clients + 1) ** -self.exponent
        sizes = apportion(rest, weights) + self.min_size
        order = pool.stream("power-law").permutation(len(pool))
        return Split(shards=shards_of_sizes(order, sizes, len(pool)))


def _weighted(
    pool: ExamplePool,
    name: str,
    weights: NDArray[np.float64],
    advice: str = "Set fewer clients, or use more data.",
) -> Split:
    sizes = apportion(len(pool), weights)
    if not sizes.min():
        raise UsageError(
            f"The partitioner {name!r} leaves {np.count_nonzero(sizes == 0)} of {len(sizes)} "
            f"clients without one of {len(pool)} examples. {advice}"
        )
    order = pool.stream(name).permutation(len(pool))
    return Split(shards=shards_of_sizes(order, sizes, len(pool)))


def _positive(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise UsageError(f"Expected a finite {name} > 0, got {value}.")
