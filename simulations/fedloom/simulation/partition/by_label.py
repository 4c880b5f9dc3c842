"""Partitioners that skew the clients' labels.

Invariants: no example is in two shards; every example is in one unless stated otherwise.

Legend: C clients, K classes, N examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.partition import classic
from fedloom.simulation.partition.base import ExamplePool, Split, apportion, check_sizes, grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirichlet:
    """Split each class in proportions drawn from Dirichlet(alpha, …, alpha) over the clients.

    Yurochkin et al. (2019), "Bayesian nonparametric federated learning of neural networks",
    section 4. Flower Datasets' `DirichletPartitioner` also balances sizes and requires
    ten examples per client; here sizes are not balanced, and draws that leave a client fewer than
    `min_size` examples are repeated.

    Attributes:
        alpha: above 0; towards 0 each class goes to one client, towards infinity all clients have
            equal proportions.
        min_size: smallest accepted shard, at least 1.
        max_tries: draws before the split is refused.
    """

    alpha: float = 0.5
    min_size: int = 1
    max_tries: int = 1000

    def __post_init__(self) -> None:
        _at_least_one("min_size", self.min_size)
        _at_least_one("max_tries", self.max_tries)
        _check_alpha((self.alpha,))

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        labels = pool.labels("dirichlet")
        dealt = classic.dirichlet(
            labels,
            num_clients=pool.count("dirichlet"),
            alpha=self.alpha,
            seed=pool.seed,
            min_size=self.min_size,
            max_tries=self.max_tries,
        )
        return Split(shards=dealt.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerDirichlet:
    """Fix the clients' sizes and draw each client's mix from a Dirichlet over the classes.

    Acar et al. (2021), "Federated learning based on dynamic regularization", as in Flower
    Datasets' `InnerDirichletPartitioner`: places are filled in a random order of clients, each
    with a class drawn from its client's mix; an exhausted class is not drawn again. There places
    are filled one by one; here all places draw at once, the first places keep an exhausted class,
    and the others draw again without it. The last places take the remaining examples, so mixes
    are as drawn only until a class is exhausted.

    Attributes:
        alpha: concentration, above 0, one for all classes or one for each.
        sizes: of each client; default: equal sizes. Examples beyond their sum are not used.
    """

    alpha: float | Sequence[float] = 0.5
    sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        _check_alpha((self.alpha,) if isinstance(self.alpha, int | float) else self.alpha)

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        labels = pool.labels("inner-dirichlet")
        sizes = _sizes(pool, self.sizes, "inner-dirichlet")
        available = np.bincount(labels, minlength=pool.num_classes or 0)
        alpha = np.array(self.alpha, np.float64)
        if alpha.ndim and len(alpha) != len(available):
            raise UsageError(
                f"Expected one alpha, or one for each of {len(available)} classes, got "
                f"{len(alpha)}."
            )
        generator = pool.stream("inner-dirichlet")
        mixes = generator.dirichlet(np.broadcast_to(alpha, available.shape), size=len(sizes))
        places = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
        classes = _fill(places, mixes, available, generator)
        owner = np.full(len(labels), -1, np.int64)
        for label in range(len(available)):
            takers = places[classes == label]
            owner[_members(labels, label, generator)[: len(takers)]] = takers
        return Split(shards=grouped(owner, len(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pathological:
    """Give every client exactly k classes; each class is split evenly over its clients.

    Li et al. (2022), "Federated learning on non-IID data silos", section 3.1. Flower Datasets'
    `PathologicalPartitioner` draws the classes of each client at random by default, which may
    leave a class without a client; here `balanced` gives all classes equal numbers of clients, plus
    or minus one. A class without a client is not used.

    Attributes:
        classes_per_client: k, from 1 to K.
        assignment: `balanced`; `random`: k classes drawn for each client; `deterministic`: client
            i gets classes i, i + 1, …, i + k − 1, modulo K.
    """

    classes_per_client: int = 2
    assignment: Literal["balanced", "random", "deterministic"] = "balanced"

    def __post_init__(self) -> None:
        _at_least_one("classes_per_client", self.classes_per_client)

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        labels, num_clients = pool.labels("pathological"), pool.count("pathological")
        present = np.unique(labels)
        if self.classes_per_client > len(present):
            raise UsageError(
                f"Expected classes_per_client <= {len(present)}, the number of classes, got "
                f"{self.classes_per_client}. Lower it."
            )
        generator = pool.stream("pathological")
        held = present[self._assign(num_clients, len(present), generator)]
        owner = np.full(len(labels), -1, np.int64)
        for label in present:
            holders = np.flatnonzero((held == label).any(axis=1))
            members = _members(labels, int(label), generator)
            if len(holders) > len(members):
                raise UsageError(
                    f"Expected at least {len(holders)} examples of class {label}, one for each "
                    f"of its clients, got {len(members)}. Set fewer clients or "
                    "fewer classes_per_client."
                )
            if len(holders):
                owner[members] = np.repeat(holders, apportion(len(members), np.ones(len(holders))))
        return Split(shards=grouped(owner, num_clients))

    def _assign(
        self, num_clients: int, num_classes: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        k = self.classes_per_client
        if self.assignment == "deterministic":
            numbers = np.arange(num_clients)[:, np.newaxis] + np.arange(k)
            return numbers % num_classes
        keys = generator.random((num_clients, num_classes))
        if self.assignment == "random":
            return np.argsort(keys, axis=1)[:, :k]
        held = np.zeros(num_classes, np.int64)
        rows = []
        for key in keys:
            rows.append(np.lexsort((key, held))[:k])
            held[rows[-1]] += 1
        return np.stack(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelShards:
    """Sort by label, cut into `shards_per_client` · C equal shards, and give each client that many.

    McMahan et al. (2017), "Communication-efficient learning of deep networks from decentralized
    data", section 3: 200 shards of 300 MNIST digits, two for each of 100 clients, so that most
    have examples of two digits only. Examples of one label are shuffled first. If N is not
    divisible, shards differ by one example; Flower Datasets' `ShardPartitioner` can drop the rest
    instead.

    Attributes:
        shards_per_client: at least 1.
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        _at_least_one("shards_per_client", self.shards_per_client)

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        labels, num_clients = pool.labels("shards"), pool.count("shards")
        num_shards = num_clients * self.shards_per_client
        if num_shards > len(labels):
            raise UsageError(
                f"Expected at least {num_shards} examples, one for each shard, got {len(labels)}. "
                "Set fewer clients or fewer shards_per_client."
            )
        generator = pool.stream("shards")
        order = generator.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        takers = generator.permutation(np.repeat(np.arange(num_clients), self.shards_per_client))
        owner = np.empty(len(labels), np.int64)
        owner[order] = np.repeat(takers, apportion(len(labels), np.ones(num_shards)))
        return Split(shards=grouped(owner, num_clients))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Give each client the mix of labels of its row in a matrix.

    Flower Datasets' `DistributionPartitioner` takes a matrix of labels by buckets and assigns
    buckets to clients by its own rule; here a row is a client's mix. Examples that no row needs
    are not used.

    Attributes:
        mixes: C rows of K weights, at least 0, each row with a sum above 0.
        sizes: of each client; default: the largest equal size that the data allow.
    """

    mixes: Sequence[Sequence[float]]
    sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.mixes}
        weights = [weight for row in self.mixes for weight in row]
        if len(widths) != 1 or not all(0 <= weight < np.inf for weight in weights):
            raise UsageError(
                "Expected mixes as rows of equal length, of finite weights of at least 0, got "
                f"rows of {sorted(widths)} weights from {min(weights, default=0)}."
            )
        if not all(sum(row) > 0 for row in self.mixes):
            raise UsageError("Expected every row of mixes to have a sum above 0, got one of 0.")

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        labels = pool.labels("distribution")
        mixes = np.array(self.mixes, np.float64)
        num_classes = pool.num_classes or 0
        if mixes.shape[1] != num_classes or pool.clients not in (None, len(mixes)):
            raise UsageError(
                f"Expected mixes of {pool.clients or 'any number of'} clients by {num_classes} "
                f"classes, got {len(mixes)} by {mixes.shape[1]}."
            )
        mixes /= mixes.sum(axis=1, keepdims=True)
        available = np.bincount(labels, minlength=num_classes)
        wanted = self._wanted(mixes, available)
        if (wanted.sum(axis=0) > available).any():
            label = int(np.argmax(wanted.sum(axis=0) - available))
            raise UsageError(
                f"Expected sizes and mixes that need at most {available[label]} examples of class "
                f"{label}, got {wanted[:, label].sum()}. Lower sizes, or omit them."
            )
        generator = pool.stream("distribution")
        owner = np.full(len(labels), -1, np.int64)
        for label, counts in enumerate(wanted.T):
            takers = np.repeat(np.arange(len(mixes)), counts)
            owner[_members(labels, label, generator)[: len(takers)]] = takers
        return Split(shards=grouped(owner, len(mixes)))

    def _wanted(
        self, mixes: NDArray[np.float64], available: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        if self.sizes is not None:
            if len(self.sizes) != len(mixes):
                raise UsageError(
                    f"Expected one size for each of {len(mixes)} rows, got {len(self.sizes)}."
                )
            sizes = check_sizes(self.sizes, int(available.sum()))
            return np.stack([apportion(int(n), mix) for n, mix in zip(sizes, mixes, strict=True)])
        asked = mixes.sum(axis=0)
        size = int((available[asked > 0] / asked[asked > 0]).min())
        # Rounding may need one example of a class too many: then a smaller size is tried.
        while size:
            wanted = np.stack([apportion(size, mix) for mix in mixes])
            if (wanted.sum(axis=0) <= available).all():
                return wanted
            size -= 1
        raise UsageError(
            "The data have too few examples of a class for one example per row of mixes. Use fewer "
            "rows, or more data."
        )


def _fill(
    places: NDArray[np.int64],
    mixes: NDArray[np.float64],
    available: NDArray[np.int64],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw the class of each place from its client's mix, until classes are exhausted."""
    left = available.copy()
    classes = np.empty(len(places), np.int64)
    waiting = np.arange(len(places))
    while len(waiting):
        weights = mixes * (left > 0)
        spent = weights.sum(axis=1) == 0
        weights[spent] = left
        cumulated = np.cumsum(weights, axis=1)[places[waiting]]
        height = generator.random(len(waiting)) * cumulated[:, -1]
        drawn = np.argmax(cumulated > height[:, np.newaxis], axis=1)
        kept = _rank(drawn) < left[drawn]
        classes[waiting[kept]] = drawn[kept]
        left -= np.bincount(drawn[kept], minlength=len(left))
        waiting = waiting[~kept]
    return classes


def _rank(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each value, the number of equal values before it."""
    order = np.argsort(values, kind="stable")
    first = np.cumsum(counts := np.bincount(values)) - counts
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - first[values[order]]
    return rank


def _members(
    labels: NDArray[np.int64], label: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    return generator.permutation(np.flatnonzero(labels == label))


def _sizes(pool: ExamplePool, sizes: Sequence[int] | None, name: str) -> NDArray[np.int64]:
    if sizes is None:
        return apportion(len(pool), np.ones(pool.count(name)))
    if pool.clients not in (None, len(sizes)):
        raise UsageError(f"Expected one size for each of {pool.clients} clients, got {len(sizes)}.")
    return check_sizes(sizes, len(pool))


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"Expected {name} >= 1, got {value}.")


def _check_alpha(alphas: Sequence[float]) -> None:
    if not alphas or not all(0 < alpha < np.inf for alpha in alphas):
        raise UsageError(f"Expected a finite alpha > 0, got {', '.join(map(str, alphas))}.")
