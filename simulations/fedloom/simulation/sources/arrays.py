"""Arrays and torch data sets, in memory or in a .npz file.

Invariant: arrays of the right dtype are used without a copy; nothing writes to them.
"""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.datasets import pixels
from fedloom.simulation.data.population import Examples, Population
from fedloom.simulation.partition.base import Partitioner
from fedloom.simulation.sources.base import (
    LoadedData,
    as_inputs,
    as_targets,
    keep_for_test,
    populate,
)
from fedloom.simulation.sources.checks import check_kinds, check_owners
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
        with Path(file).expanduser().open("rb") as opened, zipfile.ZipFile(opened):
            arrays = np.load(opened, allow_pickle=False)
            held = {
                name: arrays[name]
                for name in ("x", "y", "x_test", "y_test", "owners")
                if name in arrays
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
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
    return loaded(**held, num_classes=num_classes, test=test, seed=seed, where=f" of {file}")


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
    transform: Any = None,
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
        transform: list of transforms of inputs; see `fedloom.simulation.data.transforms`.

    Raises:
        UsageError: the arrays do not match, or cannot be split in this way.
    """
    found = loaded(
        x=as_array(x, "inputs"),
        y=as_array(y, "targets"),
        x_test=None if x_test is None else as_array(x_test, "test inputs"),
        y_test=None if y_test is None else as_array(y_test, "test targets"),
        owners=None if owners is None else _owners(owners),
        num_classes=num_classes,
        test=test,
        seed=seed,
    )
    return populate(
        found,
        seed=seed,
        clients=clients,
        partition=partition,
        held_out=held_out,
        transform=transform,
    )


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
    transform: Any = None,
) -> Population:
    """Make a population of a torch data set; every example is fetched once.

    The data set's transforms run once too: give random ones as `transform` here. The data sets, of
    clients and of central test examples, have map style; an example is (input, target), of tensors,
    arrays or numbers. Other arguments as in `from_arrays`.

    Raises:
        UsageError: it is no such data set, or cannot be split in this way.
    """
    x, y = stacked(dataset)
    x_test, y_test = (None, None) if test_dataset is None else stacked(test_dataset)
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
        transform=transform,
    )


def loaded(
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
    """Arrays in the dtypes of models; arguments as in `from_arrays`.

    Raises:
        UsageError: the arrays do not match.
    """
    if (x_test is None) != (y_test is None):
        raise UsageError("x_test and y_test go together. Give both.")
    if x.ndim < 1 or y.ndim < 1 or not len(x) or len(x) != len(y):
        raise UsageError(
            f"Expected one target for each of one or more inputs, got {x.shape} and {y.shape}."
        )
    if owners is not None and owners.shape != (len(x),):
        raise UsageError(
            f"Expected one owner for each of {len(x)} examples, got owners of {owners.shape}."
        )
    num_classes = classes_of(y, y_test) if num_classes is None else num_classes
    targets, classes = as_targets(y, num_classes)
    train = Examples(x=as_inputs(x), y=targets)
    found = flaws(train, (x, y), (f"x{where}", f"y{where}"))
    made = LoadedData(train=train, num_classes=classes, owners=owners, flaws=found)
    if x_test is None or y_test is None:
        return keep_for_test(made, test=test, seed=seed)
    if test:
        raise UsageError(f"Give x_test or test, not both (test = {test}).")
    if x_test.ndim < 1 or y_test.ndim < 1 or not len(x_test) or len(x_test) != len(y_test):
        raise UsageError(
            "Expected one target for each of one or more test inputs, got "
            f"{x_test.shape} and {y_test.shape}."
        )
    check_kinds(x, x_test)
    held = Examples(x=as_inputs(x_test), y=as_targets(y_test, classes)[0])
    found += flaws(held, (x_test, y_test), (f"x_test{where}", f"y_test{where}"))
    return replace(made, test=held, flaws=found)


def classes_of(y: NDArray[Any], y_test: NDArray[Any] | None) -> int | None:
    """The number of classes of both; None without test classes, or if targets are values."""
    both = [y] if y_test is None else [y, y_test]
    if y_test is None or not all(each.size and each.dtype.kind in "iub" for each in both):
        return None
    return max(as_targets(np.maximum(each, 0), None)[1] or 1 for each in both)


def as_array(value: Any, where: str) -> NDArray[Any]:
    """An array of numbers from an array, a tensor or nested lists.

    Raises:
        UsageError: it is something else, or masked.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value  # numpy has no bfloat16
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            f"Expected {where} without a mask, got a masked array. Fill it, such as by "
            "filled(0), or drop such examples."
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise UsageError(f"Expected {where} as examples of one shape, got: {error}.") from None
    if array.dtype.kind not in "fiub":
        raise UsageError(f"Expected {where} as numbers, got {array.dtype}.")
    return array


def _owners(given: Any) -> NDArray[Any]:
    """Owners as an array; of a list each is checked: numpy makes a text of NaN beside texts."""
    if not hasattr(given, "dtype"):
        check_owners(np.array(given, object))
    return np.asarray(given)


def stacked(dataset: MapDataset) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and targets of a torch data set.

    Raises:
        UsageError: it is no such data set, it is empty, or its examples differ in shape.
    """
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        # A TensorDataset has stacked tensors.
        return as_array(tensors[0], "inputs"), as_array(tensors[1], "targets")
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
        if (value.dtype, target.dtype) != (inputs.dtype, targets.dtype):
            raise UsageError(
                f"Expected examples of one dtype, {inputs.dtype} and {targets.dtype}, got "
                f"{value.dtype} and {target.dtype} at {index}. Convert them to one."
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
    return as_array(pixels(example[0]), "inputs"), as_array(example[1], "targets")
