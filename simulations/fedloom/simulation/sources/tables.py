"""Tables: CSV and Parquet files with a column of targets and an optional one of clients.

Invariants: inputs are float32 of shape (N, columns), in the order of the file or of `features`;
class targets are numbered from 0 in ascending order of their values, texts of whole numbers as
numbers; files of a folder are read in the order of their names.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.tables import (
    Columns,
    PlaceOf,
    files_of,
    iter_parquet,
    numbers,
    place_of,
    read_csv,
    read_parquet,
)
from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, keep_for_test
from fedloom.simulation.sources.checks import class_numbers, is_missing, joined
from fedloom.simulation.sources.converted import Block, converted
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
    """A CSV file whose first line names its columns, or the files `*.csv` of a folder.

    Args:
        seed: of the experiment.
        file: UTF-8.
        target: name of the column of targets.
        features: columns of inputs; default: all except target and client, of the first file.
        client: column of owners.
        task: whether targets are classes or values.
        separator: of cells.
        test: fraction of central test examples.

    Raises:
        UsageError: the file or a column is missing, or cells are invalid.
    """
    pieces = ((str(each), read_csv(each, separator)) for each in files_of(file, "csv"))
    return _table(pieces, file, _Wanted(target, features, client, task), test=test, seed=seed)


def parquet(
    *,
    seed: int,
    file: str,
    target: str,
    features: Sequence[str] | None = None,
    client: str | None = None,
    task: Literal["classes", "values"] = "classes",
    test: float = 0.2,
    mapped: bool = False,
) -> LoadedData:
    """A Parquet file, or those of a folder; needs pyarrow. Other arguments as in `csv_file`.

    With `mapped`, for data larger than memory, they are converted once, some rows at a time, and
    then inputs are read row by row.

    Raises:
        UsageError: pyarrow is not installed, the file or a column is missing, or cells are invalid.
    """
    files, wanted = files_of(file, "parquet"), _Wanted(target, features, client, task)
    if mapped:
        return _mapped(files, wanted, test=test, seed=seed)
    pieces = ((str(each), read_parquet(each)) for each in files)
    return _table(pieces, file, wanted, test=test, seed=seed)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Columns, as in `csv_file`."""

    target: str
    features: Sequence[str] | None
    client: str | None
    task: str

    def of(self, columns: Sequence[str], file: str) -> "_Wanted":
        """With columns of inputs; all columns are known to exist.

        Raises:
            UsageError: one is missing, or used twice.
        """
        others = [self.target, *([] if self.client is None else [self.client])]
        features = self.features
        if features is None:
            features = [name for name in columns if name not in others]
        for name in (*others, *features):
            if name not in columns:
                raise UsageError(f"Expected a column {name!r} in {file}. {hint(name, columns)}")
        if len({*features, *others}) < len(features) + len(others):
            raise UsageError(
                f"Expected different columns as features, target and client, got {list(features)}, "
                f"{self.target!r} and {self.client!r}."
            )
        if not features:
            raise UsageError(f"Expected at least one column of inputs in {file}, got none.")
        return replace(self, features=features)

    def block(self, columns: Columns, file: str, place: PlaceOf) -> Block:
        """Inputs, targets (of classes by any name) and owners of some rows."""
        cells = columns[self.target]
        if self.task == "classes":
            y = _plain(cells, self.target, file, place)
        else:
            y = numbers(cells, self.target, file, place=place)
        owner = None
        if self.client is not None:
            owner = _plain(columns[self.client], self.client, file, place)
        return _inputs(columns, self.features or (), file, place), y, owner


def _table(
    pieces: Iterable[tuple[str, Columns]], where: str, wanted: _Wanted, *, test: float, seed: int
) -> LoadedData:
    blocks = []
    for file, columns in pieces:
        wanted = wanted.of(list(columns), file)
        blocks.append(wanted.block(columns, file, place_of(columns)))
    xs, ys, owners = zip(*blocks, strict=True)
    y = joined(ys, f"targets in {where}")
    if not len(y):
        raise UsageError(f"Expected at least one row in {where}, got none.")
    classes: tuple[str, ...] = ()
    if wanted.task == "classes":
        classes, y = class_numbers(y)
    loaded = LoadedData(
        train=Examples(x=np.concatenate(xs), y=y),
        num_classes=len(classes) or None,
        class_names=classes,
        owners=None if wanted.client is None else joined(owners, f"owners in {where}"),
        columns=tuple(wanted.features or ()),
    )
    return keep_for_test(loaded, test=test, seed=seed)


def _mapped(files: Sequence[Path], wanted: _Wanted, *, test: float, seed: int) -> LoadedData:
    """Examples whose inputs stay in a file."""
    for file in files:
        wanted = wanted.of(list(next(iter_parquet(file))), str(file))
    names = wanted.features or ()
    used = [wanted.target, *names, *([] if wanted.client is None else [wanted.client])]

    def rows() -> Iterator[Block]:
        for file in files:
            first = 1
            for columns in iter_parquet(file, used):
                start, count = first, len(columns[wanted.target])

                def place(row: int, start: int = start) -> str:
                    return f"row {row + start}"

                if count:
                    yield wanted.block(columns, str(file), place)
                first += count

    settings = ("parquet", wanted.target, tuple(names), wanted.client, wanted.task)
    loaded = converted(files, settings, rows, named=wanted.task == "classes")
    return keep_for_test(replace(loaded, columns=tuple(names)), test=test, seed=seed)


def _inputs(
    columns: Columns, features: Sequence[str], file: str, place: PlaceOf
) -> NDArray[np.float32]:
    x = np.empty((len(columns[features[0]]), len(features)), np.float32)
    for number, name in enumerate(features):
        x[:, number] = numbers(columns[name], name, file, place=place)
    return x


def _plain(cells: NDArray[Any], name: str, file: str, place: PlaceOf) -> NDArray[Any]:
    """Cells of classes or owners, none of them missing, as numbers or text."""
    listed: list[Any] = cells.tolist()
    for row, cell in enumerate(listed):
        if is_missing(cell):
            raise UsageError(
                f"Expected a value in each row of column {name!r} of {file}, got {cell!r} in "
                f"{place(row)}. Fill empty cells."
            )
        if cells.dtype == object and type(cell) is not type(listed[0]):
            raise UsageError(
                f"Column {name!r} of {file} has cells of several kinds: "
                f"{type(listed[0]).__name__} and {type(cell).__name__} in {place(row)}."
            )
    return np.array(listed) if cells.dtype == object else cells
