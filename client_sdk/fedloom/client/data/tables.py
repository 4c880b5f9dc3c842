"""Examples in tables: CSV and Parquet files, one or a folder of them, with a column of targets.

Invariants: files of a folder are read in the order of their names; inputs are in the order of
`features`, or of the first file's columns. Errors name the file, the column, and the row: of a CSV
file the line as an editor shows it, of other tables the row from 1.

Legend: N rows.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.shard import Arrays
from fedloom.protocol.errors import UsageError
from fedloom.strategies.setting_checks import hint

Columns: TypeAlias = dict[str, NDArray[Any]]
"""Name → cells, [N]: text, numbers or objects."""
PlaceOf: TypeAlias = Callable[[int], str]
"""Says where a row is, in words; rows count from 0."""


def from_csv(
    path: str | Path,
    *,
    label: str,
    features: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    separator: str = ",",
    dtype: Any = np.float32,
    mean: Any = 0.0,
    scale: Any = 1.0,
) -> Arrays:
    """Read a CSV file, or every `*.csv` of a folder; the first line of each names its columns.

    Args:
        path: of a file in UTF-8, or of a folder.
        label: column of targets.
        features: columns of inputs, numbers. Default: all others.
        classes: all values of the label on any device; their order gives the class numbers. None:
            the label is a number.
        separator: between cells.
        dtype: of inputs.
        mean: subtracted from inputs, one number or one per feature. Use the same on every device.
        scale: factor of the inputs after `mean` is subtracted, likewise.

    Raises:
        UsageError: a file or column is missing, or a cell is not valid.
    """
    blocks = ((str(file), read_csv(file, separator)) for file in files_of(path, "csv"))
    return shard_of(
        blocks, label=label, features=features, classes=classes, dtype=dtype, mean=mean, scale=scale
    )


def from_parquet(
    path: str | Path,
    *,
    label: str,
    features: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    dtype: Any = np.float32,
    mean: Any = 0.0,
    scale: Any = 1.0,
) -> Arrays:
    """Read a Parquet file, or every `*.parquet` of a folder; needs pyarrow. As `from_csv`."""
    files = files_of(path, "parquet")
    wanted = None if features is None else [*features, label]
    blocks = ((str(file), read_parquet(file, wanted)) for file in files)
    return shard_of(
        blocks, label=label, features=features, classes=classes, dtype=dtype, mean=mean, scale=scale
    )


def shard_of(
    blocks: Iterator[tuple[str, Columns]],
    *,
    label: str,
    features: Sequence[str] | None,
    classes: Sequence[Any] | None,
    dtype: Any,
    mean: Any,
    scale: Any,
) -> Arrays:
    """Join blocks of (source, columns) to a shard; other arguments as in `from_csv`.

    Raises:
        UsageError: a column is missing, a cell is not valid, or there is no row.
    """
    targets = _numbering(classes)
    xs, ys, where = [], [], ""
    for where, columns in blocks:
        features = [n for n in columns if n != label] if features is None else features
        for name in (label, *features):
            if name not in columns:
                raise UsageError(f"Expected a column {name!r} in {where}. {hint(name, columns)}")
        x = np.empty((len(columns[label]), len(features)), dtype)
        for place, name in enumerate(features):
            x[:, place] = numbers(columns[name], name, where, dtype, place_of(columns))
        xs.append(x)
        ys.append(targets(columns[label], label, where, place_of(columns)))
    if not sum(map(len, ys)) or not features:
        raise UsageError(
            f"Expected rows with a column of inputs in {where}, got {sum(map(len, ys))} rows and "
            f"{len(features or ())} columns."
        )
    return Arrays(
        np.concatenate(xs),
        np.concatenate(ys),
        dtype=dtype,
        mean=mean,
        scale=scale,
        num_classes=None if classes is None else len(classes),
    )


class Lines(dict[str, NDArray[Any]]):
    """The columns of a text file, with the line of each row.

    Attributes:
        lines: numbers of lines from 1.
    """

    lines: Sequence[int] = ()


def place_of(columns: Columns) -> PlaceOf:
    """Says where a row of these columns is: `line 7` of a text file, or `row 6`."""
    if isinstance(columns, Lines):
        lines = columns.lines
        return lambda row: f"line {lines[row]}"
    return _row


def _row(row: int) -> str:
    return f"row {row + 1}"


def _numbering(
    classes: Sequence[Any] | None,
) -> Callable[[NDArray[Any], str, str, PlaceOf], NDArray[Any]]:
    if classes is None:
        return lambda cells, name, where, place: numbers(cells, name, where, place=place)
    known = {str(value): number for number, value in enumerate(classes)}
    if len(known) != len(classes) or len(known) < 2:
        raise UsageError(f"Expected two or more different classes, got {list(classes)}.")

    def numbered(cells: NDArray[Any], name: str, where: str, place: PlaceOf) -> NDArray[Any]:
        found = [known.get(str(cell), -1) for cell in cells.tolist()]
        if -1 in found:
            row = found.index(-1)
            raise UsageError(
                f"Expected a class of {', '.join(list(known)[:8])} in column {name!r} of {where}, "
                f"got {_shown(cells[row])} in {place(row)}."
            )
        return np.array(found, np.int64)

    return numbered


def files_of(path: str | Path, kind: str) -> list[Path]:
    """A file, or the files of a kind in a folder, at least one."""
    path = Path(path).expanduser()
    if not path.is_dir():
        return [path]
    if not (found := visible(path, kind)):
        raise UsageError(f"Expected *.{kind} files in {path}, got none.")
    return found


def visible(folder: Path, kind: str) -> list[Path]:
    """The files of a kind in a folder, by name, without hidden ones such as `._a.csv` of macOS."""
    return sorted(file for file in folder.glob(f"*.{kind}") if not file.name.startswith("."))


def read_csv(file: str | Path, separator: str = ",") -> Columns:
    """Read a CSV file whose first line names its columns.

    Returns:
        Cells as text.

    Raises:
        UsageError: the file is missing, or is not such a table.
    """
    try:
        with Path(file).expanduser().open(newline="", encoding="utf-8-sig") as opened:
            return _columns(csv.reader(opened, delimiter=separator), file)
    except (OSError, UnicodeDecodeError, csv.Error, TypeError) as error:
        raise UsageError(f"Expected a CSV file at {file}, got: {error}.") from error


def read_parquet(file: str | Path, columns: Sequence[str] | None = None) -> Columns:
    """Read a Parquet file; needs pyarrow.

    Args:
        file: to read.
        columns: to read, except those that the file lacks; None for all.

    Raises:
        UsageError: pyarrow is not installed, or the file cannot be read.
    """
    with _parquet(file) as opened:
        return _cells(opened.read(columns=_held(opened, columns)))


def iter_parquet(
    file: str | Path, columns: Sequence[str] | None = None, rows: int = 16_384
) -> Iterator[Columns]:
    """Read a Parquet file, some rows at a time; needs pyarrow.

    Args:
        file: to read.
        columns: to read, except those that the file lacks; None for all.
        rows: of a piece, at most; the first piece has none.

    Raises:
        UsageError: pyarrow is not installed, or the file cannot be read.
    """
    with _parquet(file) as opened:
        wanted = _held(opened, columns)
        empty = opened.schema_arrow.empty_table()
        yield _cells(empty if wanted is None else empty.select(wanted))
        for batch in opened.iter_batches(batch_size=rows, columns=wanted):
            yield _cells(batch)


@contextmanager
def _parquet(file: str | Path) -> Iterator[Any]:
    try:
        # By name: an optional library without types.
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            "Reading Parquet files needs pyarrow, which is not installed: pip install pyarrow"
        ) from error
    try:
        with parquet.ParquetFile(Path(file).expanduser(), pre_buffer=False) as opened:
            names = opened.schema_arrow.names
            if len(set(names)) < len(names):
                raise UsageError(f"Expected different names of columns in {file}, got {names}.")
            yield opened
    except (OSError, ValueError) as error:
        raise UsageError(f"Expected a Parquet file at {file}, got: {error}.") from error


def _held(opened: Any, columns: Sequence[str] | None) -> list[str] | None:
    names = opened.schema_arrow.names
    return None if columns is None else [name for name in columns if name in names]


def _cells(table: Any) -> Columns:
    return {name: _column(table.column(name)) for name in table.schema.names}


def _column(cells: Any) -> NDArray[Any]:
    if import_module("pyarrow.types").is_dictionary(cells.type):
        # Of several chunks, pyarrow makes a missing cell the first category.
        cells = cells.cast(cells.type.value_type)
    found: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
    return found


def _columns(rows: Any, file: str | Path) -> Columns:
    names = next(rows, None)
    if not names or len(set(names)) != len(names):
        raise UsageError(f"Expected different names of columns in the first line of {file}.")
    cells: list[list[str]] = []
    lines: list[int] = []
    for row in rows:
        if row and len(row) != len(names):
            raise UsageError(
                f"Expected {len(names)} cells in line {rows.line_num} of {file}, got {len(row)}."
            )
        if row:
            cells.append(row)
            lines.append(rows.line_num)
    columns = Lines(
        {
            name: np.array(column, dtype=np.str_)
            for name, column in zip(names, zip(*cells, strict=True), strict=False)
        }
        or {name: np.array([], np.str_) for name in names}
    )
    columns.lines = lines
    return columns


def numbers(
    cells: NDArray[Any], name: str, file: str | Path, dtype: Any = np.float32, place: PlaceOf = _row
) -> NDArray[Any]:
    """Convert a column's cells to numbers.

    Raises:
        UsageError: a cell is not a finite number; the message names it.
    """
    if cells.dtype.kind in "mM":
        raise UsageError(
            f"Expected numbers in column {name!r} of {file}, got dates or times, whose unit "
            "depends on the file. Convert them to numbers first, such as days."
        )
    try:
        with np.errstate(over="ignore"):  # infinite values are refused below
            values = cells.astype(dtype)
    except (TypeError, ValueError) as error:
        row = next(row for row, cell in enumerate(cells.tolist()) if not _is_number(cell))
        raise UsageError(
            f"Expected numbers in column {name!r} of {file}, got {_shown(cells[row])} in "
            f"{place(row)}. Remove it from features, or convert it to numbers first."
        ) from error
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise UsageError(
            f"Expected finite numbers in column {name!r} of {file}, got {_shown(cells[row])} in "
            f"{place(row)}. Fill it, or drop the row."
        )
    return values


def _shown(cell: Any) -> str:
    """A cell as text."""
    return repr(cell.item() if isinstance(cell, np.generic) else cell)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
