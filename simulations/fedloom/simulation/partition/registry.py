"""Partitioners by name, for settings as text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, lookup, named
from fedloom.simulation.partition.base import ExamplePool, Partitioner, Split
from fedloom.simulation.partition.by_label import (
    Dirichlet,
    Distribution,
    InnerDirichlet,
    LabelShards,
    Pathological,
)
from fedloom.simulation.partition.by_property import Continuous, GroupedNatural, Natural
from fedloom.simulation.partition.by_size import Exponential, Iid, Linear, PowerLaw, Sizes, Square
from fedloom.simulation.partition.shift import FeatureShift
from fedloom.strategies.setting_checks import spelled

PARTITIONERS: Final[dict[str, Callable[..., Partitioner]]] = {
    "iid": Iid,
    "sizes": Sizes,
    "linear": Linear,
    "square": Square,
    "exponential": Exponential,
    "power-law": PowerLaw,
    "dirichlet": Dirichlet,
    "inner-dirichlet": InnerDirichlet,
    "pathological": Pathological,
    "shards": LabelShards,
    "distribution": Distribution,
    "natural": Natural,
    "grouped-natural": GroupedNatural,
    "continuous": Continuous,
    "feature-shift": FeatureShift,
}


def build(partition: Mapping[str, Any]) -> Partitioner:
    """Build the partitioner of this name with these settings.

    >>> build({"name": "dirichlet", "alpha": 0.1})
    Dirichlet(alpha=0.1, min_size=1, max_tries=1000)

    Args:
        partition: `name`, a key of `PARTITIONERS`, and fields of its dataclass.

    Raises:
        UsageError: the name or a setting is unknown, missing, of the wrong type or out of range.
    """
    name, settings = named(partition, "data.partition", PARTITIONERS)
    kind = lookup("a partitioner's name", name, PARTITIONERS)
    return call(kind, settings, owner=name, table="data.partition")


def decides(partition: Any) -> bool:
    """Whether a partition, as of `split`, decides the number of clients if it is not set."""
    name = partition.get("name") if isinstance(partition, Mapping) else partition
    kind = PARTITIONERS.get(spelled(name, PARTITIONERS)) if isinstance(name, str) else type(name)
    own = callable(partition) and not hasattr(partition, "deal")
    return own or kind in (Natural, GroupedNatural, Sizes, Distribution)


OwnSplit = Callable[[ExamplePool], Split | Sequence[Any]]
"""The user's own split: from a pool to a `Split`, or to each client's indices of examples."""


def split(
    pool: ExamplePool, partition: str | Mapping[str, Any] | Partitioner | OwnSplit | None = None
) -> Split:
    """Split a pool.

    Args:
        pool: to split.
        partition: the partitioner, its name, or a function; default: `natural` if the data have
            owners, otherwise `iid`.

    Raises:
        UsageError: the partitioner is unknown, or cannot split this pool.
    """
    if partition is None:
        partition = {"name": "iid" if pool.owners is None else "natural"}
    if isinstance(partition, str):
        partition = {"name": partition}
    partitioner = build(partition) if isinstance(partition, Mapping) else partition
    if callable(partitioner) and not hasattr(partitioner, "deal"):
        return _as_split(partitioner(pool), pool.clients)
    if not hasattr(partitioner, "deal") or isinstance(partitioner, type):
        raise UsageError(
            "Expected a partition as a table with a name and settings, such as "
            f'partition = {{ name = "iid" }}, got {partition!r}.'
        )
    dealt = partitioner.deal(pool)
    return dealt if type(partitioner) in PARTITIONERS.values() else _disjoint(dealt)


def _as_split(found: Any, clients: int | None) -> Split:
    """The result of a user's own split, checked; `Population` checks the range of indices."""
    shards = found.shards if isinstance(found, Split) else found
    if clients not in (None, len(shards)):
        raise UsageError(
            f"Expected partition to return the examples of {clients} clients, got {len(shards)}. "
            "Leave out clients, or make both equal."
        )
    if isinstance(found, Split):
        return _disjoint(found)
    shards = [np.asarray(shard) for shard in shards]
    for client, shard in enumerate(shards):
        if shard.ndim != 1 or (shard.size and shard.dtype.kind not in "iu"):
            raise UsageError(
                "Expected partition to return each client's indices of examples as whole numbers, "
                f"got {shard.dtype} of shape {shard.shape} for client {client}."
            )
    return _disjoint(Split(shards=tuple(np.sort(shard).astype(np.int64) for shard in shards)))


def _disjoint(split: Split) -> Split:
    """The split, if each example is assigned once at most.

    Raises:
        UsageError: an example is assigned twice.
    """
    sizes = [len(shard) for shard in split.shards]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    examples = np.concatenate([np.empty(0, np.int64), *split.shards])
    order = np.argsort(examples, kind="stable")
    again = np.flatnonzero(np.diff(examples[order]) == 0)
    if not again.size:
        return split
    names = split.names or range(len(sizes))
    one, other = order[again[0]], order[again[0] + 1]
    first, second = (f"client {names[owners[each]]}" for each in (one, other))
    raise UsageError(
        f"Expected partition to assign each example at most once, got example {int(examples[one])} "
        f"for {f'{first} and {second}' if first != second else f'{first} twice'}, one of "
        f"{again.size} such cases. Correct the partition; to share examples on purpose, give a "
        "fedloom.simulation.Population as data."
    )
