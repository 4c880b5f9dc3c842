"""Hugging Face data sets, loaded by flwr-datasets.

The split over clients is fedloom's, seeded like any other. flwr-datasets reports its use to its
makers unless FLWR_TELEMETRY_ENABLED=0 is set.
"""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, as_inputs, as_targets, keep_for_test
from fedloom.simulation.sources.finite import flaws
from fedloom.strategies.setting_checks import hint


def huggingface(
    *,
    seed: int,
    dataset: str,
    inputs: str,
    target: str,
    subset: str | None = None,
    client: str | None = None,
    train_split: str = "train",
    test_split: str | None = "test",
    test: float = 0.2,
) -> LoadedData:
    """A data set of the Hugging Face hub, of images or of numbers.

    Args:
        seed: of the experiment.
        dataset: its name on the hub, such as `ylecun/mnist`.
        inputs: column of inputs: images, or lists of numbers of one length.
        target: column of targets: class numbers, or values.
        subset: if the set has several.
        client: column of owners.
        train_split: examples for the clients.
        test_split: central test examples; "" for none.
        test: fraction of central test examples if `test_split` is "".

    Raises:
        UsageError: flwr-datasets is not installed, or there is no such column.
        UnavailableError: the download failed.
    """
    try:
        # By name: it is an optional dependency.
        flower = import_module("flwr_datasets")
    except ImportError as error:
        raise UsageError(
            "Hugging Face data sets are loaded by flwr-datasets, which is not installed. Install "
            "it with: pip install 'flwr-datasets[vision]'"
        ) from error
    federated = flower.FederatedDataset(
        dataset=dataset, subset=subset, partitioners={train_split: 1}, shuffle=False
    )
    train = _split(federated, train_split)
    x, y = _column(train, inputs), _column(train, target)
    targets, classes = as_targets(y, None)
    x = _channel_first(x)
    examples = Examples(x=as_inputs(x), y=targets)
    loaded = LoadedData(
        train=examples,
        num_classes=classes,
        owners=None if client is None else _column(train, client),
        flaws=flaws(examples, (x, y), _names(train_split, inputs, target)),
    )
    if not test_split:
        return keep_for_test(loaded, test=test, seed=seed)
    held = _split(federated, test_split)
    x, y = _channel_first(_column(held, inputs)), _column(held, target)
    examples = Examples(x=as_inputs(x), y=as_targets(y, classes)[0])
    found = flaws(examples, (x, y), _names(test_split, inputs, target))
    return replace(loaded, test=examples, flaws=(*loaded.flaws, *found))


def _names(split: str, inputs: str, target: str) -> tuple[str, str]:
    return f"column {inputs!r} of {split}", f"column {target!r} of {split}"


def _split(federated: Any, name: str) -> Any:
    try:
        return federated.load_split(name)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"The split {name!r} cannot be loaded: {error}. Set train_split and test_split."
        ) from error
    except OSError as error:
        raise UnavailableError(f"The split {name!r} cannot be loaded: {error}.") from error


def _column(split: Any, name: str) -> NDArray[Any]:
    if name not in split.column_names:
        raise UsageError(f"Expected a column {name!r}. {hint(name, split.column_names)}")
    try:
        return np.stack([np.asarray(value) for value in split[name]])
    except ValueError as error:
        raise UsageError(
            f"Expected values of one shape in column {name!r}, got: {error}. Resize them first."
        ) from error


def _channel_first(x: NDArray[Any]) -> NDArray[Any]:
    """Images as bytes: (N, height, width[, channels]) becomes (N, channels, height, width)."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return x
    return x[:, np.newaxis] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
