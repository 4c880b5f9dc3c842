"""Sources of data by name, for settings as text."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, check_names, lookup
from fedloom.simulation.data.population import Population
from fedloom.simulation.partition.base import Partitioner
from fedloom.simulation.sources import (
    alpha_beta,
    arrays,
    huggingface,
    images,
    in_memory,
    leaf,
    mapped,
    synthetic,
    tables,
    text,
    webdataset,
)
from fedloom.simulation.sources.base import LoadedData, populate
from fedloom.simulation.sources.tff import federated, stackoverflow
from fedloom.strategies.setting_checks import hint, parameters

SOURCES: Final[dict[str, Callable[..., LoadedData]]] = {
    "digits": images.digits,
    "idx": images.idx_folder,
    "mnist": images.mnist,
    "fashion-mnist": images.fashion_mnist,
    "emnist": images.emnist,
    "cifar10": images.cifar10,
    "cifar100": images.cifar100,
    "leaf": leaf.leaf,
    "stackoverflow": stackoverflow.stackoverflow,
    "tff": federated.tff,
    "shakespeare": text.shakespeare,
    "text": text.text,
    "synthetic": synthetic.synthetic,
    "synthetic-alpha-beta": alpha_beta.alpha_beta,
    "csv": tables.csv_file,
    "parquet": tables.parquet,
    "arrays": arrays.npz,
    "mapped": mapped.mapped,
    "webdataset": webdataset.webdataset,
    "huggingface": huggingface.huggingface,
}


def load(
    *,
    source: Any = None,
    seed: int,
    clients: int | None = None,
    partition: Mapping[str, Any] | Partitioner | None = None,
    held_out: float | None = None,
    transform: Any = None,
    **settings: Any,
) -> Population:
    """Load data and split them over clients.

    >>> population = load(source="digits", seed=1, clients=20, held_out=0.25)
    >>> len(population), len(population.examples), len(population.test)
    (20, 1438, 359)

    Args:
        source: a key of `SOURCES`, or the data themselves, as of `in_memory.in_memory`.
        seed: the same seed and settings give the same population.
        clients: number of clients; optional if the data or the partition decide.
        partition: `name` and settings of a partitioner; default: `natural` for data with owners,
            `iid` for others.
        held_out: fraction of its examples that each client keeps for evaluation.
        transform: list of transforms of inputs; see `fedloom.simulation.data.transforms`.
        **settings: of the source, such as `folder`, `download` or `test`, or of
            `in_memory.in_memory`; None for the default.

    Raises:
        UsageError: a name or a setting is unknown or out of range, the data are missing or
            damaged, or they cannot be split in this way.
        UnavailableError: the download failed.
    """
    if clients is not None and (type(clients) is not int or clients < 1):
        raise UsageError(f"Expected clients as a whole number >= 1, got {clients!r}.")
    given = {name: value for name, value in settings.items() if value is not None}
    if source is None or isinstance(source, str):
        found = _read(source, given, seed)
    else:
        partition = _check_split(source, clients, partition)
        check_names(given, parameters(in_memory.in_memory).keys() - {"data", "seed"}, "data")
        found = in_memory.in_memory(source, seed=seed, **given)
    return populate(
        found,
        seed=seed,
        clients=clients,
        partition=partition,
        held_out=held_out,
        transform=transform,
    )


def _read(source: str | None, given: Mapping[str, Any], seed: int) -> LoadedData:
    """The data of a named source."""
    if source is None:
        check_names(given, _SHARED, "data")
        raise UsageError(f"Missing setting data.source: set it to one of {', '.join(SOURCES)}.")
    function = lookup("a source of data", source, SOURCES)
    own = parameters(function)
    known = {*own, *_SHARED} - {"seed"}
    for name in given.keys() - known:
        raise UsageError(
            f"Unknown setting 'data.{name}' of the source {source!r}. {hint(name, known)}"
        )
    if "seed" in own:
        given = {**given, "seed": seed}
    return call(function, given, owner=f"the source {source!r}", table="data")


_SHARED = ("source", "clients", "partition", "held_out", "transform")
"""Settings of every source."""


def _check_split(
    source: Any, clients: int | None, partition: Mapping[str, Any] | Partitioner | None
) -> Mapping[str, Any] | Partitioner | None:
    """The partition of data in memory: a dictionary of clients is split already."""
    if not in_memory.is_split(source):
        return partition
    if partition is not None or clients is not None:
        raise UsageError(
            "Expected neither clients nor partition with a dictionary of clients, which is split "
            "already. Leave them out, or give all examples as (inputs, targets)."
        )
    return in_memory.Named()
