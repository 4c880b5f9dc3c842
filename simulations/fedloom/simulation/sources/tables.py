"""Tables: CSV and Parquet files with a column of targets and perhaps one of clients.

Invariants: inputs are float32 of shape (N, columns), in the order of the file or of `features`;
class targets are numbered from 0 in ascending order of their values.
"""

import csv
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.named import hint
from fedloom.simulation.population import Examples
from fedloom.simulation.sources.base import Loaded, keep_for_test

Columns = dict[str, NDArray[Any]]


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
) -> Loaded:
    """A CSV file whose first line names its columns.

    Args:
        seed: the experiment's.
        file: UTF-8.
        target: name of the column of targets.
        features: columns of inputs; all others than target and client where left out.
        client: column that says whose each row is.
        task: whether targets are classes or values.
        separator: between cells.
        test: fraction for the test in one place.

    Raises:
        UsageError: no such file or column, or cells that are not what they must be.
    """
    try:
        with Path(file).expanduser().open(newline="", encoding="utf-8-sig") as opened:
            columns = _read_csv(opened, file, separator)
    except (OSError, UnicodeDecodeError, csv.Error, TypeError) as error:
        raise UsageError(f"Expected a CSV file at {file}, got: {error}.") from error
    return _table(
        columns,
        file,
        target=target,
        features=features,
        client=client,
        task=task,
        test=test,
        seed=seed,
    )


def parquet(
    *,
    seed: int,
    file: str,
    target: str,
    features: Sequence[str] | None = None,
    client: str | None = None,
    task: Literal["classes", "values"] = "classes",
    test: float = 0.2,
) -> Loaded:
    """A Parquet file; needs pyarrow.

    Args:
        seed: the experiment's.
        file: the file.
        target: name of the column of targets.
        features: columns of inputs; all others than target and client where left out.
        client: column that says whose each row is.
        task: whether targets are classes or values.
        test: fraction for the test in one place.

    Raises:
        UsageError: pyarrow is not installed, or no such file or column, or cells that are not
            what they must be.
    """
    try:
        # By name: an extra that few need, which ships no types.
        read_table = import_module("pyarrow.parquet").read_table
    except ImportError as error:
        raise UsageError(
            "Parquet files are read by pyarrow, which is not installed. Install it with: pip "
            "install pyarrow"
        ) from error
    path = Path(file).expanduser()
    try:
        table = read_table(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"Expected a Parquet file at {file}, got: {error}.") from error
    columns = {
        name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names
    }
    return _table(
        columns,
        file,
        target=target,
        features=features,
        client=client,
        task=task,
        test=test,
        seed=seed,
    )


def _read_csv(opened: Any, file: str, separator: str) -> Columns:
    rows = csv.reader(opened, delimiter=separator)
    names = next(rows, None)
    if not names or len(set(names)) != len(names):
        raise UsageError(f"Expected different names of columns in the first line of {file}.")
    cells: list[list[str]] = []
    for row in rows:
        if row and len(row) != len(names):
            raise UsageError(
                f"Expected {len(names)} cells in line {rows.line_num} of {file}, got {len(row)}."
            )
        if row:
            cells.append(row)
    return {
        name: np.array(column, dtype=np.str_)
        for name, column in zip(names, zip(*cells, strict=True), strict=False)
    } or {name: np.array([], np.str_) for name in names}


def _table(
    columns: Columns,
    file: str,
    *,
    target: str,
    features: Sequence[str] | None,
    client: str | None,
    task: str,
    test: float,
    seed: int,
) -> Loaded:
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
        x[:, place] = _numbers(columns[name], name, file)
    if task == "classes":
        try:
            classes, y = np.unique(columns[target], return_inverse=True)
        except TypeError as error:
            raise UsageError(
                f"Expected cells of one kind in column {target!r} of {file}, got: {error}. Fill "
                "the empty ones."
            ) from error
        examples = Examples(x=x, y=y.astype(np.int64))
        num_classes: int | None = len(classes)
    else:
        examples = Examples(x=x, y=_numbers(columns[target], target, file))
        num_classes = None
    loaded = Loaded(
        train=examples,
        num_classes=num_classes,
        owners=None if client is None else columns[client],
        columns=tuple(features),
    )
    return keep_for_test(loaded, test=test, seed=seed)


def _numbers(cells: NDArray[Any], name: str, file: str) -> NDArray[np.float32]:
    try:
        values = cells.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"Expected numbers in column {name!r} of {file}, got: {error}. Leave it out of "
            "features, or turn it into numbers first."
        ) from error
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise UsageError(
            f"Expected finite numbers in column {name!r} of {file}, got {cells[row]!r} in row "
            f"{row + 1}. Fill it, or drop the row."
        )
    return values
