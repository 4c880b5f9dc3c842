"""The demo's data, dealt out: what each client holds, to train on and to evaluate on.

Invariant: the clients' held-out parts together are the whole held-out set, each example once, so
the mean of their accuracies weighted by examples is the accuracy on that set.
"""

from dataclasses import dataclass
from pathlib import Path

from fedloom.simulation import partition
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.sources import shards as data
from fedloom.simulation.sources.shards import Dataset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """What one client holds.

    Attributes:
        client: its name.
        train: examples to train on.
        held_out: examples to evaluate on, of much the same mix; may be empty.
    """

    client: str
    train: Dataset
    held_out: Dataset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Federation:
    """The data of an experiment, whole and dealt out.

    Attributes:
        train: all that the clients train on together.
        held_out: all that they evaluate on together.
        shards: who holds what.
    """

    train: Dataset
    held_out: Dataset
    shards: tuple[Shard, ...]


def deal(train: Dataset, held_out: Dataset, settings: DemoSettings) -> Federation:
    """Split both sets over the clients, each label by the same Dirichlet shares.

    Raises:
        UsageError: when no split gives every client enough examples.
    """
    trained = partition.dirichlet(
        train.y,
        num_clients=settings.num_clients,
        alpha=settings.alpha,
        seed=settings.seed,
        min_size=settings.min_size,
    )
    evaluated = partition.follow(trained, held_out.y, seed=settings.seed)
    pairs = zip(trained.shards, evaluated.shards, strict=True)
    shards = tuple(
        Shard(client=f"site-{number}", train=train.take(own), held_out=held_out.take(kept))
        for number, (own, kept) in enumerate(pairs, start=1)
    )
    return Federation(train=train, held_out=held_out, shards=shards)


def digits(settings: DemoSettings) -> Federation:
    """Deal scikit-learn's digits out."""
    return deal(
        *data.split(data.digits(), held_out=settings.held_out, seed=settings.seed), settings
    )


def mnist(folder: Path, settings: DemoSettings) -> Federation:
    """Deal a folder in MNIST's layout out, with the test images as those held out."""
    return deal(*data.mnist(folder), settings)


def write(federation: Federation, folder: Path) -> dict[str, Path]:
    """Write each client's shard into a file of its own.

    Returns:
        The files by client name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for shard in federation.shards:
        paths[shard.client] = folder / f"{shard.client}.npz"
        data.save(paths[shard.client], train=shard.train, held_out=shard.held_out)
    return paths
