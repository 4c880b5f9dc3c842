"""Tables whose columns a file describes: numbers, texts and missing cells become inputs.

    separator = ","
    label = "outcome"
    classes = ["home", "ward"]   # for a label of numbers: mean = 3.5 and scale = 0.5

    [inputs]
    age = { mean = 52.0, scale = 0.05 }
    smoker = { values = ["no", "yes"] }

A number becomes (x - mean) · scale, and 0 where it is missing; a text becomes one input for each of
its values, 1 or 0, and zeros for other and missing texts. The file is the same on every device:
means or values of one device's data would give its inputs another meaning.

Invariants: errors name the file, the line and the column; lines count from 1, with the header.

Legend: N rows, F inputs.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedloom.client.data.shard import Arrays
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import checked, toml
from fedloom.strategies.setting_checks import hint

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
"""Texts of a missing cell, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """A column of numbers: (x - mean) · scale."""

    mean: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """A column of texts: an input for each of `values`."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table.

    Attributes:
        label: column of targets.
        target: its classes in the order of their numbers, or how its numbers are scaled.
        inputs: columns of inputs by name, in order; others are ignored.
        separator: between cells.
    """

    label: str
    target: NumberColumn | TextColumn
    inputs: Mapping[str, NumberColumn | TextColumn] = field(default_factory=dict)
    separator: str = ","

    @property
    def num_inputs(self) -> int:
        """F."""
        return sum(
            len(column.values) if isinstance(column, TextColumn) else 1
            for column in self.inputs.values()
        )

    def dumps(self) -> str:
        """The text of the file that `load_columns` reads."""
        lines = [
            "# How the columns of a CSV file become inputs; the same on every device.",
            f"separator = {toml.text_of(self.separator)}",
            f"label = {toml.text_of(self.label)}",
        ]
        if isinstance(self.target, TextColumn):
            lines.append(f"classes = {toml.text_of(self.target.values)}")
        else:
            lines += [f"mean = {self.target.mean!r}", f"scale = {self.target.scale!r}"]
        lines += ["", "[inputs]"]
        for name, column in self.inputs.items():
            settings: dict[str, Any] = (
                {"values": column.values}
                if isinstance(column, TextColumn)
                else {"mean": column.mean, "scale": column.scale}
            )
            lines.append(f"{toml.text_of(name)} = {toml.text_of(settings)}")
        return "\n".join(lines) + "\n"


class Row(NamedTuple):
    """The cells of a table's row.

    Attributes:
        line: of the file, where the row begins.
        cells: as many as the table has columns.
    """

    line: int
    cells: Sequence[str]


class TextTable(NamedTuple):
    """A CSV file as text: the names of its columns, and its rows."""

    names: Sequence[str]
    rows: Sequence[Row]


def from_table(path: str | Path, columns: str | Path | TableColumns) -> Arrays:
    """Read a CSV file, or every `*.csv` of a folder, as a file describes its columns.

    Args:
        path: of a file in UTF-8, or of a folder.
        columns: of the table; a file in the form that this module shows.

    Returns:
        Inputs, float32 [N, F]; targets, int64 [N] of class numbers or float32 [N].

    Raises:
        UsageError: a file or column is missing, or a cell is not valid.
    """
    if not isinstance(columns, TableColumns):
        columns = load_columns(columns)
    path = Path(path).expanduser()
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    x, y = [], []
    for file in files:
        table = read_rows(file, columns.separator)
        for name in (columns.label, *columns.inputs):
            if name not in table.names:
                raise UsageError(
                    f"{file}, line 1: expected a column {name!r}, got none. "
                    f"{hint(name, table.names)}"
                )
        places = {name: table.names.index(name) for name in (columns.label, *columns.inputs)}
        for row in table.rows:
            cells = {name: row.cells[place] for name, place in places.items()}
            x.append(_inputs(columns, cells, file, row.line))
            y.append(_target(columns, cells, file, row.line))
    if not y:
        raise UsageError(f"Expected a CSV file with rows at {path}, got none.")
    is_class = isinstance(columns.target, TextColumn)
    return Arrays(
        np.array(x, np.float32),
        np.array(y, np.int64 if is_class else np.float32),
        num_classes=len(columns.target.values) if isinstance(columns.target, TextColumn) else None,
    )


def load_columns(file: str | Path) -> TableColumns:
    """Read the description of a table's columns.

    Raises:
        UsageError: the file is missing, or is not such a description.
    """
    document = toml.read(Path(file), "a table's columns")
    try:
        return _described(document)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _described(document: Mapping[str, Any]) -> TableColumns:
    kinds = {"separator": str, "label": str, "inputs": Any, "classes": Any, "mean": float,
             "scale": float}  # fmt: skip
    given = checked(document, kinds)
    inputs = given.get("inputs")
    if not isinstance(inputs, Mapping) or not inputs or "label" not in given:
        raise UsageError("Expected a label and a table [inputs] of columns, got none.")
    if len(separator := given.get("separator", ",")) != 1:
        raise UsageError(f"Expected one character as the separator, got {separator!r}.")
    target: dict[str, Any] = {n: given[n] for n in ("mean", "scale") if n in given}
    if "classes" in given:
        target["values"] = given["classes"]
    return TableColumns(
        label=given["label"],
        separator=separator,
        target=_column(target, "the label"),
        inputs={name: _column(settings, repr(name)) for name, settings in inputs.items()},
    )


def _column(settings: Any, name: str) -> NumberColumn | TextColumn:
    if not isinstance(settings, Mapping):
        raise UsageError(
            f"Expected mean and scale, or values, of {name}, got {settings!r}. Write them as "
            '{ mean = 0.0, scale = 1.0 } or { values = ["a", "b"] }.'
        )
    if "values" in settings:
        values = checked(settings, {"values": Any})["values"]
        texts = tuple(str(value) for value in values) if isinstance(values, list | tuple) else ()
        if len(set(texts)) != len(texts) or not texts:
            raise UsageError(f"Expected different values of {name}, got {values!r}.")
        return TextColumn(values=texts)
    numbers = checked(settings, {"mean": float, "scale": float})
    if not all(math.isfinite(number) for number in numbers.values()):
        raise UsageError(f"Expected a finite mean and scale of {name}, got {numbers}.")
    return NumberColumn(**numbers)


def read_rows(file: str | Path, separator: str = ",") -> TextTable:
    """Read a CSV file whose first line names its columns; empty lines are left out.

    Raises:
        UsageError: the file is missing, or is not such a table; names the line.
    """
    last = 0
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened, delimiter=separator, strict=True)
            names = [name.strip() for name in next(reader, [])]
            _check_names(names, file)
            rows, last = [], reader.line_num
            for cells in reader:
                line, last = last + 1, reader.line_num
                if not cells:
                    continue
                if len(cells) != len(names):
                    raise UsageError(
                        f"{file}, line {line}: expected {len(names)} cells, as the first line "
                        f"has, got {len(cells)}. Put cells that hold {separator!r} in quotes."
                    )
                rows.append(Row(line, [cell.strip() for cell in cells]))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Expected {file} as text in UTF-8, got the byte {error.object[error.start]:#04x}. "
            "Save the table as CSV in UTF-8."
        ) from None
    except (csv.Error, TypeError) as error:
        raise UsageError(
            f"{file}, line {last + 1}: expected a row of a CSV file, got: {error}. Look for a "
            "quotation mark that is not closed."
        ) from None
    except OSError as error:
        raise UsageError(f"Expected a CSV file at {file}, got: {error.strerror}.") from None
    return TextTable(names, rows)


def _check_names(names: Sequence[str], file: str | Path) -> None:
    if not names:
        raise UsageError(f"Expected names of columns in the first line of {file}, got none.")
    for place, name in enumerate(names):
        if not name:
            raise UsageError(
                f"{file}, line 1: expected a name for column {place + 1}, got none. Name it, or "
                "remove it."
            )
        if names.index(name) != place:
            raise UsageError(
                f"{file}, line 1: expected different names of columns, got {name!r} as column "
                f"{names.index(name) + 1} and column {place + 1}. Rename one."
            )


def is_missing(cell: str) -> bool:
    """Whether a cell has no value."""
    return cell.lower() in MISSING


def number_of(cell: str) -> float | None:
    """A cell as a finite number; None if it is none."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def _inputs(columns: TableColumns, cells: Mapping[str, str], file: Path, line: int) -> list[float]:
    found: list[float] = []
    for name, column in columns.inputs.items():
        cell = cells[name]
        if isinstance(column, TextColumn):
            found += [float(cell == value) for value in column.values]
        elif is_missing(cell):
            found.append(0.0)
        else:
            found.append((_number(cell, name, file, line) - column.mean) * column.scale)
    return found


def _target(columns: TableColumns, cells: Mapping[str, str], file: Path, line: int) -> float:
    cell, name = cells[columns.label], columns.label
    if not isinstance(columns.target, TextColumn):
        return (_number(cell, name, file, line) - columns.target.mean) * columns.target.scale
    if cell in columns.target.values:
        return columns.target.values.index(cell)
    some = ", ".join(columns.target.values[:8])
    raise UsageError(
        f"{file}, line {line}, column {name!r}: expected a class of {some}, got {cell!r}. Correct "
        "it, or remove the row."
    )


def _number(cell: str, name: str, file: Path, line: int) -> float:
    if (value := number_of(cell)) is None:
        raise UsageError(
            f"{file}, line {line}, column {name!r}: expected a number, got {cell!r}. Correct it, "
            "or remove the row."
        )
    return value
