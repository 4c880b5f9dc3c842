"""Sources of data by name, for settings as text."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, lookup
from fedloom.simulation.data.population import Population
from fedloom.simulation.partition.base import Partitioner
from fedloom.simulation.sources import arrays, huggingface, images, synthetic, tables, text
from fedloom.simulation.sources.base import LoadedData, populate
from fedloom.strategies.setting_checks import parameters

SOURCES: Final[dict[str, Callable[..., LoadedData]]] = {
    "digits": images.digits,
    "idx": images.idx_folder,
    "mnist": images.mnist,
    "fashion-mnist": images.fashion_mnist,
    "emnist": images.emnist,
    "cifar10": images.cifar10,
    "cifar100": images.cifar100,
    "shakespeare": text.shakespeare,
    "text": text.text,
    "synthetic": synthetic.synthetic,
    "csv": tables.csv_file,
    "parquet": tables.parquet,
    "arrays": arrays.npz,
    "huggingface": huggingface.huggingface,
}


def load(
    *,
    source: str,
    seed: int,
    clients: int | None = None,
    partition: Mapping[str, Any] | Partitioner | None = None,
    held_out: float | None = None,
    **settings: Any,
) -> Population:
    """Load data and split them over clients.

    >>> population = load(source="digits", seed=1, clients=20, held_out=0.25)
    >>> len(population), len(population.examples), len(population.test)
    (20, 1438, 359)

    Args:
        source: a key of `SOURCES`.
        seed: the same seed and settings give the same population.
        clients: number of clients; optional if the data or the partition decide.
        partition: `name` and settings of a partitioner; default: `natural` for data with owners,
            `iid` for others.
        held_out: fraction of its examples that each client keeps for evaluation.
        **settings: of the source, such as `folder`, `download` or `test`; None for the default.

    Raises:
        UsageError: a name or a setting is unknown or out of range, the data are missing or
            damaged, or they cannot be split in this way.
        UnavailableError: the download failed.
    """
    function = lookup("a source of data", source, SOURCES)
    if clients is not None and (type(clients) is not int or clients < 1):
        raise UsageError(f"Expected clients as a whole number >= 1, got {clients!r}.")
    given = {name: value for name, value in settings.items() if value is not None}
    if "seed" in parameters(function):
        given["seed"] = seed
    return populate(
        call(function, given, owner=f"the source {source!r}", table="data"),
        seed=seed,
        clients=clients,
        partition=partition,
        held_out=held_out,
    )
