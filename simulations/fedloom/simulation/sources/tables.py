"""Tables: CSV and Parquet files with a column of targets and an optional one of clients.

Invariants: inputs are float32 of shape (N, columns), in the order of the file or of `features`;
class targets are numbered from 0 in ascending order of their values.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedloom.client.data.tables import Columns, numbers, read_csv, read_parquet
from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, keep_for_test
from fedloom.strategies.setting_checks import hint


def csv_file(
    *,
    seed: int,
    file: str,
    target: str,
    features: Sequence[str] | None = None,
    client: str | None = None,
    task: Literal["classes", "values"] = "classes",
    separator: str = ",",
    test: float = 0.2,
) -> LoadedData:
    """A CSV file whose first line names its columns.

    Args:
        seed: of the experiment.
        file: UTF-8.
        target: name of the column of targets.
        features: columns of inputs; default: all except target and client.
        client: column of owners.
        task: whether targets are classes or values.
        separator: of cells.
        test: fraction of central test examples.

    Raises:
        UsageError: the file or a column is missing, or cells are invalid.
    """
    columns = read_csv(file, separator)
    return _table(columns, file, target, features, client, task=task, test=test, seed=seed)


def parquet(
    *,
    seed: int,
    file: str,
    target: str,
    features: Sequence[str] | None = None,
    client: str | None = None,
    task: Literal["classes", "values"] = "classes",
    test: float = 0.2,
) -> LoadedData:
    """A Parquet file; needs pyarrow. Arguments as in `csv_file`.

    Raises:
        UsageError: pyarrow is not installed, the file or a column is missing, or cells are invalid.
    """
    columns = read_parquet(file)
    return _table(columns, file, target, features, client, task=task, test=test, seed=seed)


def _table(
    columns: Columns,
    file: str,
    target: str,
    features: Sequence[str] | None,
    client: str | None,
    *,
    task: str,
    test: float,
    seed: int,
) -> LoadedData:
    if features is None:
        features = [name for name in columns if name not in (target, client)]
    for name in (target, *features, *([] if client is None else [client])):
        if name not in columns:
            raise UsageError(f"Expected a column {name!r} in {file}. {hint(name, columns)}")
    if not features or not len(columns[target]):
        raise UsageError(
            f"Expected at least one column of inputs and one row in {file}, got {len(features)} "
            f"and {len(columns[target])}."
        )
    x = np.empty((len(columns[target]), len(features)), np.float32)
    for place, name in enumerate(features):
        x[:, place] = numbers(columns[name], name, file)
    if task == "classes":
        try:
            classes, y = np.unique(columns[target], return_inverse=True)
        except TypeError as error:
            raise UsageError(
                f"Column {target!r} of {file} has cells of several kinds: {error}. Fill empty "
                "cells."
            ) from error
        examples = Examples(x=x, y=y.astype(np.int64))
        num_classes: int | None = len(classes)
    else:
        examples = Examples(x=x, y=numbers(columns[target], target, file))
        num_classes = None
    loaded = LoadedData(
        train=examples,
        num_classes=num_classes,
        owners=None if client is None else columns[client],
        columns=tuple(features),
    )
    return keep_for_test(loaded, test=test, seed=seed)
