"""Loaded data, and how they become a population.

Invariants: random numbers come from streams of the experiment's seed, so the same settings give the
same population; examples are in memory once.

Legend: N examples, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import typed
from fedloom.simulation.data.mapped import as_model_input, chosen_rows
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.data.transforms import pipeline
from fedloom.simulation.partition.base import ExamplePool, Partitioner
from fedloom.simulation.partition.registry import split
from fedloom.simulation.seeds import stream
from fedloom.simulation.sources.checks import check_examples, check_owners

Indices = NDArray[np.int64]
_MOST_CLASSES = 1_000_000
"""Larger numbers are no class numbers, unless num_classes is given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedData:
    """Data before they are split over clients.

    Attributes:
        train: examples for the clients.
        test: central test examples; None for none.
        num_classes: K if targets are class numbers; None otherwise.
        owners: the owner of each training example, shape (N,); None if unknown.
        columns: names of the columns of x; empty if it has none.
        class_names: names of classes 0, 1, …; empty if they have none.
        flaws: descriptions of values that are not finite, by `fedloom.simulation.sources.finite`.

    Raises:
        UsageError: test examples of another form than training's, or an example without an owner.
    """

    train: Examples
    test: Examples | None = None
    num_classes: int | None = None
    owners: NDArray[np.generic] | None = None
    columns: Sequence[str] = ()
    class_names: Sequence[str] = ()
    flaws: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_examples(self.train, self.test, self.num_classes)
        if self.owners is not None:
            check_owners(self.owners)


def populate(
    loaded: LoadedData,
    *,
    seed: int,
    clients: int | None = None,
    partition: Mapping[str, Any] | Partitioner | None = None,
    held_out: float | None = None,
    transform: Any = None,
) -> Population:
    """Split loaded data over clients. Arguments as in `fedloom.simulation.sources.load`.

    Raises:
        UsageError: the data cannot be split in this way.
    """
    if held_out is not None and not 0 < typed("held_out", held_out, float) < 1:
        raise UsageError(
            f"Expected 0 < held_out < 1, got {held_out}. Omit it if no client evaluates."
        )
    pool = ExamplePool(
        examples=loaded.train,
        seed=seed,
        clients=clients,
        num_classes=loaded.num_classes,
        owners=loaded.owners,
        columns=loaded.columns,
    )
    dealt = split(pool, partition)
    kept = (
        None
        if held_out is None
        else [hold_out(shard, held_out, seed, client) for client, shard in enumerate(dealt.shards)]
    )
    return Population(
        examples=dealt.examples or loaded.train,
        names=dealt.names or numbered(len(dealt.shards)),
        shards=dealt.shards if kept is None else [train for train, _ in kept],
        held_out_shards=None if kept is None else [held for _, held in kept],
        test=loaded.test,
        num_classes=loaded.num_classes,
        flaws=loaded.flaws,
        columns=loaded.columns,
        class_names=loaded.class_names,
        transform=pipeline(transform),
    )


def hold_out(shard: Indices, fraction: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Split a client's examples into training examples, at least one, and held-out ones."""
    count = min(round(fraction * len(shard)), len(shard) - 1)
    chosen = np.zeros(len(shard), np.bool_)
    chosen[stream(seed, "client-held-out", client).permutation(len(shard))[:count]] = True
    return shard[~chosen], shard[chosen]


def check_test(test: float) -> float:
    """Return the fraction of central test examples.

    Raises:
        UsageError: it is not in [0, 1).
    """
    if not 0 <= test < 1:
        raise UsageError(f"Expected 0 <= test < 1, got {test}.")
    return test


def keep_for_test(
    loaded: LoadedData, *, test: float, seed: int, purpose: str = "test"
) -> LoadedData:
    """Move an equal fraction of each class to the central test examples.

    Args:
        loaded: without test examples.
        test: the fraction; 0 for none.
        seed: of the experiment.
        purpose: name of the random stream.
    """
    if not check_test(test):
        return loaded
    y = loaded.train.y
    classes = y if loaded.num_classes is not None and y.ndim == 1 else np.zeros(len(y), np.int64)
    generator = stream(seed, purpose)
    chosen = np.zeros(len(y), np.bool_)
    for label in np.unique(classes):
        members = generator.permutation(np.flatnonzero(classes == label))
        chosen[members[: round(test * len(members))]] = True
    if not chosen.any() or chosen.all():
        raise UsageError(
            f"test = {test} takes {chosen.sum()} of {len(y)} examples, which leaves one part "
            "empty. Set test = 0, or use more data."
        )
    return replace(
        loaded,
        train=_rows(loaded.train, ~chosen),
        test=_rows(loaded.train, chosen),
        owners=None if loaded.owners is None else loaded.owners[~chosen],
    )


def _rows(examples: Examples, chosen: NDArray[np.bool_]) -> Examples:
    return Examples(x=chosen_rows(examples.x, np.flatnonzero(chosen)), y=examples.y[chosen])


def as_inputs(x: NDArray[Any]) -> NDArray[Any]:
    """Return inputs in the dtypes of models, without a copy if possible.

    Floats become float32; bytes (pixels) become float32 in [0, 1]; integers (tokens) become int64.

    Raises:
        UsageError: they are not numbers.
    """
    return as_model_input(x)


def as_targets(y: NDArray[Any], num_classes: int | None) -> tuple[NDArray[Any], int | None]:
    """Return targets in the dtypes of models, and the number of classes.

    Integers are class numbers from 0 and become int64; floats become float32.

    Raises:
        UsageError: class numbers outside 0 to `num_classes` − 1, or not numbers.
    """
    if y.dtype.kind == "f":
        if num_classes is not None:
            raise UsageError(
                f"num_classes = {num_classes} needs integer class numbers, got {y.dtype}. Omit "
                "num_classes, or store the targets as integers."
            )
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(y, dtype=np.float32), None
    if y.dtype.kind not in "iub" or not y.size:
        raise UsageError(f"Expected targets as numbers, got {y.dtype} of shape {y.shape}.")
    least, most = int(y.min()), int(y.max())
    classes = most + 1 if num_classes is None else num_classes
    if least < 0 or most >= classes or (num_classes is None and most >= _MOST_CLASSES):
        limit = min(max(classes, 1), _MOST_CLASSES) - 1
        raise UsageError(
            f"Expected class numbers from 0 to {limit}, got {least} to {most}. Number the classes "
            "from 0."
        )
    return np.ascontiguousarray(y, dtype=np.int64), classes
