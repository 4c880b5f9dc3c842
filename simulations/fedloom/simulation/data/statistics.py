"""Statistics of a partition: sizes, mixes of labels, and their distance from IID.

Sources: Zhao et al. (2018), "Federated learning with non-IID data", section 3.2, measure skew by
Σ|p_client − p_all| over the classes, called earth mover's distance there; the total variation here
is half of it. Effective classes are exp of a mix's entropy (Hill, 1973,
"Diversity and evenness").

Legend: C clients, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.feature_skew import distances
from fedloom.simulation.data.population import Population
from fedloom.simulation.seeds import stream

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of training examples. Those of labels are None without class numbers.

    Attributes:
        clients: C.
        examples: of all clients together.
        min_size: examples of the smallest client.
        median_size: of the median one.
        max_size: of the largest.
        classes: K.
        median_held_classes: classes of the median client.
        median_entropy_bits: entropy of the median client's mix, from 0 to log2 K.
        median_effective_classes: exp of its entropy in nats, from 1 to K.
        total_variation: mean over clients of half of Σ|p_client − p_all|, from 0 (equal mixes)
            to 1.
        total_variation_iid: the same for a random split into equal sizes; small clients differ even
            then.
        feature_distance: mean distance of clients' inputs from all inputs
            (`fedloom.simulation.data.feature_skew`), at least 0; None for tokens and inputs in
            files.
        feature_distance_iid: the same for a random split into equal sizes.
    """

    clients: int
    examples: int
    min_size: int
    median_size: float
    max_size: int
    classes: int | None = None
    median_held_classes: float | None = None
    median_entropy_bits: float | None = None
    median_effective_classes: float | None = None
    total_variation: float | None = None
    total_variation_iid: float | None = None
    feature_distance: float | None = None
    feature_distance_iid: float | None = None

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each statistic, as text."""
        rows = [
            ("clients", f"{self.clients:,}"),
            ("examples", f"{self.examples:,}"),
            (
                "examples per client: smallest, median, largest",
                f"{self.min_size:,}, {self.median_size:,.4g}, {self.max_size:,}"
                if self.median_size < 1000
                else f"{self.min_size:,}, {self.median_size:,.0f}, {self.max_size:,}",
            ),
        ]
        if self.classes is not None:
            rows += self._of_labels()
        if self.feature_distance is not None:
            rows += [
                ("mean distance of inputs from all inputs", f"{self.feature_distance:.3f}"),
                ("distance in a random split", f"{self.feature_distance_iid:.3f}"),
            ]
        return rows

    def _of_labels(self) -> list[tuple[str, str]]:
        return [
            ("classes", f"{self.classes:,}"),
            ("classes of the median client", f"{self.median_held_classes:g}"),
            ("entropy of the median client's labels", f"{self.median_entropy_bits:.2f} bits"),
            ("effective classes of the median client", f"{self.median_effective_classes:.2f}"),
            ("mean total variation from all labels", f"{self.total_variation:.3f}"),
            ("the same for a random split", f"{self.total_variation_iid:.3f}"),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def label_counts(population: Population) -> Counts:
    """Count the training examples of each class on each client, int64 of shape (C, K).

    If each place of an example has a target, such as the next character, places are counted.

    Raises:
        UsageError: targets are not class numbers.
    """
    if population.num_classes is None:
        raise UsageError(
            "Labels can be counted only if targets are class numbers. statistics(population) gives "
            "the sizes."
        )
    y, num_classes = population.examples.y, population.num_classes
    return np.stack([_counted(y[shard], num_classes) for shard in population.shards])


def _counted(y: NDArray[Any], num_classes: int) -> Counts:
    classes = y.ravel()
    return np.bincount(classes[classes >= 0], minlength=num_classes)  # others are no target


def statistics(population: Population) -> Statistics:
    """Statistics of a population's data.

    >>> from fedloom.simulation import sources
    >>> print(statistics(sources.load(source="digits", seed=1, clients=10)))
    clients                                         10
    examples                                        1,438
    examples per client: smallest, median, largest  143, 144, 144
    classes                                         10
    classes of the median client                    10
    entropy of the median client's labels           3.28 bits
    effective classes of the median client          9.73
    mean total variation from all labels            0.101
    the same for a random split                     0.096
    mean distance of inputs from all inputs         0.101
    distance in a random split                      0.095
    """
    sizes = population.sizes
    of_sizes = {
        "clients": len(sizes),
        "examples": int(sizes.sum()),
        "min_size": int(sizes.min()),
        "max_size": int(sizes.max()),
    }
    inputs = distances(population)
    own, at_random = (None, None) if inputs is None else (float(d.mean()) for d in inputs)
    median = float(np.median(sizes))
    if population.num_classes is None:
        return Statistics(
            **of_sizes, median_size=median, feature_distance=own, feature_distance_iid=at_random
        )
    counts = label_counts(population)
    entropy = entropies(counts)
    return Statistics(
        **of_sizes,
        feature_distance=own,
        feature_distance_iid=at_random,
        median_size=median,
        classes=population.num_classes,
        median_held_classes=float(np.median(np.count_nonzero(counts, axis=1))),
        median_entropy_bits=float(np.median(entropy) / np.log(2)),
        median_effective_classes=float(np.median(np.exp(entropy))),
        total_variation=float(total_variations(counts).mean()),
        total_variation_iid=float(total_variations(_dealt_at_random(population)).mean()),
    )


def entropies(counts: Counts) -> NDArray[np.float64]:
    """Entropy of each client's mix of labels in nats, shape (C,)."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    logs = np.log(mixes, out=np.zeros_like(mixes), where=mixes > 0)
    return np.asarray(-(mixes * logs).sum(axis=1))


def total_variations(counts: Counts) -> NDArray[np.float64]:
    """Half of Σ|p_client − p_all| of each client, shape (C,)."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    whole = counts.sum(axis=0) / counts.sum()
    return np.asarray(np.abs(mixes - whole).sum(axis=1) / 2)


def _dealt_at_random(population: Population) -> Counts:
    # A fixed seed: the statistic describes the population and must not change between calls.
    dealt = stream(0, "statistics").permutation(np.concatenate(list(population.shards)))
    cuts = np.cumsum(population.sizes)[:-1]
    shuffled: Sequence[NDArray[np.int64]] = np.split(dealt, cuts)
    y, num_classes = population.examples.y, population.num_classes or 0
    return np.stack([_counted(y[shard], num_classes) for shard in shuffled])
