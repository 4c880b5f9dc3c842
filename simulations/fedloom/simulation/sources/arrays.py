"""Arrays and torch data sets, in memory or in a .npz file.

Invariant: arrays of the right dtype are used without a copy; nothing writes to them.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples, Population
from fedloom.simulation.partition.base import Partitioner
from fedloom.simulation.sources.base import (
    LoadedData,
    as_inputs,
    as_targets,
    keep_for_test,
    populate,
)
from fedloom.simulation.sources.finite import flaws


class MapDataset(Protocol):
    """A torch data set of map style, or an object with its methods."""

    def __len__(self) -> int:
        """Number of examples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return (input, target) of an example."""


def npz(
    *, seed: int, file: str, num_classes: int | None = None, test: float | None = None
) -> LoadedData:
    """A .npz file with arrays `x` and `y`, and optional `x_test`, `y_test` and `owners`.

    Args:
        seed: of the experiment.
        file: written by numpy.savez.
        num_classes: needed if no example has the last classes.
        test: fraction of central test examples; default: 0.2 if the file has no `x_test`, else 0.

    Raises:
        UsageError: the file is missing or not such a file.
    """
    try:
        with Path(file).expanduser().open("rb") as opened, np.load(opened) as arrays:
            held = {
                name: arrays[name]
                for name in ("x", "y", "x_test", "y_test", "owners")
                if name in arrays
            }
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{file} cannot be read as a .npz file: {error}. Write it with numpy.savez(file, "
            "x=…, y=…)."
        ) from error
    missing = {"x", "y"} - set(held)
    if missing:
        raise UsageError(
            f"Expected arrays x and y in {file}, got no {' and no '.join(sorted(missing))}. "
            "Write it with numpy.savez(file, x=…, y=…)."
        )
    if test is None:
        test = 0.0 if "x_test" in held else 0.2
    return _loaded(**held, num_classes=num_classes, test=test, seed=seed, where=f" of {file}")


def from_arrays(
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    seed: int = 0,
    x_test: NDArray[Any] | None = None,
    y_test: NDArray[Any] | None = None,
    owners: NDArray[Any] | Sequence[Any] | None = None,
    num_classes: int | None = None,
    clients: int | None = None,
    partition: Mapping[str, Any] | Partitioner | None = None,
    test: float = 0.0,
    held_out: float | None = None,
) -> Population:
    """Make a population of arrays.

    >>> x, y = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
    >>> from_arrays(x, y, clients=3).sizes
    array([2, 2, 2])

    Args:
        x: inputs, shape (N, …): floats, pixels as bytes (scaled to [0, 1]) or tokens as integers.
        y: targets, shape (N, …): class numbers as integers, or values as floats.
        seed: the same seed gives the same population.
        x_test: inputs of central test examples.
        y_test: their targets.
        owners: the owner of each example, shape (N,); the default partition is then `natural`.
        num_classes: needed if no example has the last classes.
        clients: number of clients.
        partition: see `fedloom.simulation.partition.split`.
        test: fraction of central test examples, without `x_test`.
        held_out: fraction of its examples that each client keeps for evaluation.

    Raises:
        UsageError: the arrays do not match, or cannot be split in this way.
    """
    loaded = _loaded(
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        owners=None if owners is None else np.asarray(owners),
        num_classes=num_classes,
        test=test,
        seed=seed,
    )
    return populate(loaded, seed=seed, clients=clients, partition=partition, held_out=held_out)


def from_torch(
    dataset: MapDataset,
    *,
    seed: int = 0,
    test_dataset: MapDataset | None = None,
    num_classes: int | None = None,
    clients: int | None = None,
    partition: Mapping[str, Any] | Partitioner | None = None,
    test: float = 0.0,
    held_out: float | None = None,
) -> Population:
    """Make a population of a torch data set; every example is fetched once.

    Transforms run once too: random transforms are then fixed. The data sets, of clients and of
    central test examples, have map style; an example is (input, target), of tensors, arrays or
    numbers. Other arguments as in `from_arrays`.

    Raises:
        UsageError: it is no such data set, or cannot be split in this way.
    """
    x, y = _stacked(dataset)
    x_test, y_test = (None, None) if test_dataset is None else _stacked(test_dataset)
    return from_arrays(
        x,
        y,
        seed=seed,
        x_test=x_test,
        y_test=y_test,
        num_classes=num_classes,
        clients=clients,
        partition=partition,
        test=test,
        held_out=held_out,
    )


def _loaded(
    *,
    x: NDArray[Any],
    y: NDArray[Any],
    x_test: NDArray[Any] | None = None,
    y_test: NDArray[Any] | None = None,
    owners: NDArray[Any] | None = None,
    num_classes: int | None,
    test: float,
    seed: int,
    where: str = "",
) -> LoadedData:
    if (x_test is None) != (y_test is None):
        raise UsageError("x_test and y_test go together. Give both.")
    if not len(x) or x.ndim < 1 or len(x) != len(y):
        raise UsageError(
            f"Expected one target for each of one or more inputs, got {x.shape} and {y.shape}."
        )
    if owners is not None and owners.shape != (len(x),):
        raise UsageError(
            f"Expected one owner for each of {len(x)} examples, got owners of {owners.shape}."
        )
    if num_classes is None and y_test is not None and y.dtype.kind in "iub":
        num_classes = int(max(y.max(), y_test.max(initial=0))) + 1
    targets, classes = as_targets(y, num_classes)
    train = Examples(x=as_inputs(x), y=targets)
    found = flaws(train, (x, y), (f"x{where}", f"y{where}"))
    loaded = LoadedData(train=train, num_classes=classes, owners=owners, flaws=found)
    if x_test is None or y_test is None:
        return keep_for_test(loaded, test=test, seed=seed)
    if test:
        raise UsageError(f"Give x_test or test, not both (test = {test}).")
    if x_test.shape[1:] != x.shape[1:]:
        raise UsageError(
            f"Expected test inputs of shape {x.shape[1:]}, as for training, got {x_test.shape[1:]}."
        )
    held = Examples(x=as_inputs(x_test), y=as_targets(y_test, classes)[0])
    found += flaws(held, (x_test, y_test), (f"x_test{where}", f"y_test{where}"))
    return replace(loaded, test=held, flaws=found)


def _stacked(dataset: MapDataset) -> tuple[NDArray[Any], NDArray[Any]]:
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        # A TensorDataset has stacked tensors.
        return np.asarray(tensors[0]), np.asarray(tensors[1])
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            "Expected a data set of map style, with __len__ and __getitem__, got "
            f"{type(dataset).__name__}. Collect an iterable one into arrays and use from_arrays."
        )
    inputs = targets = None
    for index in range(len(dataset)):
        value, target = _pair(dataset[index])
        if inputs is None or targets is None:
            inputs = np.empty((len(dataset), *value.shape), value.dtype)
            targets = np.empty((len(dataset), *target.shape), target.dtype)
        if value.shape != inputs.shape[1:] or target.shape != targets.shape[1:]:
            raise UsageError(
                f"Expected examples of one shape, {inputs.shape[1:]} and {targets.shape[1:]}, got "
                f"{value.shape} and {target.shape} at {index}. Resize or pad them first."
            )
        inputs[index], targets[index] = value, target
    if inputs is None or targets is None:
        raise UsageError("Expected a data set with examples, got an empty one.")
    return inputs, targets


def _pair(example: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(example, tuple | list) or len(example) != 2:
        raise UsageError(
            f"Expected examples as (input, target), got {type(example).__name__}. Wrap the data "
            "set, or use from_arrays."
        )
    return np.asarray(example[0]), np.asarray(example[1])
