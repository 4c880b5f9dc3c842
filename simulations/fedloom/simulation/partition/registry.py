"""Partitioners by name, for settings as text."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, lookup
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
    settings = dict(partition)
    name = settings.pop("name", None)
    kind = lookup("a partitioner's name", name, PARTITIONERS)
    return call(kind, settings, owner=str(name), table="data.partition")


def split(pool: ExamplePool, partition: Mapping[str, Any] | Partitioner | None = None) -> Split:
    """Split a pool.

    Args:
        pool: to split.
        partition: the partitioner; default: `natural` if the data have owners, otherwise `iid`.

    Raises:
        UsageError: the partitioner is unknown, or cannot split this pool.
    """
    if partition is None:
        partition = {"name": "iid" if pool.owners is None else "natural"}
    partitioner = build(partition) if isinstance(partition, Mapping) else partition
    if not hasattr(partitioner, "deal"):
        raise UsageError(
            "Expected a partition as a table with a name and settings, such as "
            f'partition = {{ name = "iid" }}, got {partition!r}.'
        )
    return partitioner.deal(pool)
