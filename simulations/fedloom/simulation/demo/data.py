"""The demo's data: one population, and a file for each client's process.

Invariant: the clients' held-out parts are together the whole held-out set, each example once. So
the mean of their accuracies, weighted by examples, is the accuracy on that set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.simulation.data.population import Examples, Population
from fedloom.simulation.demo.settings import DemoSettings


def population(settings: DemoSettings, folder: Path | None = None) -> Population:
    """Split training and held-out examples over the clients by the same Dirichlet shares.

    Args:
        settings: of the demo.
        folder: of MNIST's IDX files; default: scikit-learn's digits are used.

    Raises:
        UsageError: no split gives every client enough examples, or the data are missing.
    """
    # Imported here: a client's process does not need it.
    from fedloom.simulation import partition  # noqa: PLC0415
    from fedloom.simulation.sources import images  # noqa: PLC0415
    from fedloom.simulation.sources.base import keep_for_test  # noqa: PLC0415

    if folder is not None:
        loaded = images.idx_folder(folder=str(folder))
    else:
        whole = images.digits(seed=settings.seed, test=0)
        loaded = keep_for_test(
            whole, test=settings.held_out, seed=settings.seed, purpose="held-out"
        )
    train, held_out = loaded.train, loaded.test
    assert held_out is not None
    trained = partition.dirichlet(
        train.y.astype(np.int64, copy=False),
        num_clients=settings.num_clients,
        alpha=settings.alpha,
        seed=settings.seed,
        min_size=settings.min_size,
    )
    evaluated = partition.follow(
        trained, held_out.y.astype(np.int64, copy=False), seed=settings.seed
    )
    return Population(
        examples=Examples(
            x=np.concatenate((train.x, held_out.x)), y=np.concatenate((train.y, held_out.y))
        ),
        names=[f"site-{number}" for number in range(1, settings.num_clients + 1)],
        shards=trained.shards,
        held_out_shards=[len(train) + shard for shard in evaluated.shards],
        test=held_out,
        num_classes=loaded.num_classes,
    )


def take(population: Population, indices: NDArray[np.int64]) -> Examples:
    """Copy some examples of a population."""
    return Examples(x=population.examples.x[indices], y=population.examples.y[indices])


def shards_of(population: Population, client: int) -> tuple[Examples, Examples]:
    """One client's training and held-out examples."""
    assert population.held_out_shards is not None
    train, held_out = population.shards[client], population.held_out_shards[client]
    return take(population, train), take(population, held_out)


def all_training(population: Population) -> Examples:
    """All clients' training examples, in the order of the data."""
    return take(population, np.sort(np.concatenate(list(population.shards))))


def all_held_out(population: Population) -> Examples:
    """All clients' held-out examples."""
    assert population.test is not None
    return population.test


def shape_of(population: Population) -> tuple[tuple[int, int, int], int]:
    """The shape of an image, and the number of classes."""
    _, channels, height, width = population.examples.x.shape
    assert population.num_classes is not None
    return (channels, height, width), population.num_classes


def write(population: Population, folder: Path) -> dict[str, Path]:
    """Write each client's examples to a separate file.

    Returns:
        The files by client name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.npz" for name in population.names}
    for client, path in enumerate(paths.values()):
        arrays: dict[str, NDArray[Any]] = {}
        parts: Sequence[tuple[str, Examples]] = tuple(
            zip(("train", "held_out"), shards_of(population, client), strict=True)
        )
        for name, part in parts:
            arrays |= {f"{name}.x": part.x, f"{name}.y": part.y}
            arrays[f"{name}.num_classes"] = np.array(population.num_classes)
        np.savez(path, allow_pickle=False, **arrays)
    return paths


def read(path: Path) -> tuple[Examples, Examples, int]:
    """Read a file of `write`: training examples, held-out examples, number of classes."""
    with np.load(path, allow_pickle=False) as arrays:
        train, held_out = (
            Examples(x=arrays[f"{name}.x"], y=arrays[f"{name}.y"]) for name in ("train", "held_out")
        )
        return train, held_out, int(arrays["train.num_classes"])
