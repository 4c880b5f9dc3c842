"""Columns of a table as one vector of inputs, and named classes as numbers.

Invariants: categories and classes are in sorted order, unless the data set orders them; no cell is
missing; a category has one place, which is 1 in its rows and 0 in others.

Legend: N rows, W places of a column.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.strategies.setting_checks import hint

MOST_CATEGORIES: Final = 100
"""A column with more different texts holds texts rather than categories."""
_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of inputs.

    Attributes:
        name: of the column.
        categories: that it may hold; None for numbers and booleans.
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def names(self) -> list[str]:
        """Of its places."""
        if self.categories is None:
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]

    def encode(self, found: Sequence[Any], where: str) -> NDArray[np.float32]:
        """Cells as inputs, shape (N, W).

        Raises:
            UsageError: a cell is not a finite number, or an unknown category.
        """
        if self.categories is None:
            if wrong := [row for row, cell in enumerate(found, 1) if not _is_number(cell)]:
                raise _odd("finite numbers", self.name, where, wrong[0], found[wrong[0] - 1])
            return np.array(found, np.float64).astype(np.float32)[:, np.newaxis]
        places = numbered_classes(found, self.categories, self.name, where)
        return np.eye(len(self.categories), dtype=np.float32)[places]


def cells(data: Any, name: str, where: str) -> list[Any]:
    """Cells of a column of a `datasets.Dataset`: numbers, booleans, texts; named classes as texts.

    Raises:
        UsageError: there is no such column, or a cell is missing.
    """
    if name not in data.column_names:
        raise UsageError(f"Expected a column {name!r} of {where}. {hint(name, data.column_names)}")
    found = [_plain(cell) for cell in data[name]]
    names = class_names(data, name)
    for row, cell in enumerate(found, 1):
        unnamed = names is not None and (type(cell) is not int or not 0 <= cell < len(names))
        if cell is None or unnamed or (isinstance(cell, float) and math.isnan(cell)):
            raise UsageError(
                f"Expected a value in each row of column {name!r} of {where}, got {cell} in row "
                f"{row}, which is missing. Fill or drop such rows first."
            )
    return found if names is None else [names[cell] for cell in found]


def class_names(data: Any, name: str) -> tuple[str, ...] | None:
    """The names of a column of type `datasets.ClassLabel`; None for others."""
    kind: Any = (getattr(data, "features", None) or {}).get(name)
    return tuple(kind.names) if type(kind).__name__ == "ClassLabel" and kind.names else None


def has_texts(data: Any, name: str) -> bool:
    """Whether a cell of a column is a text."""
    return name in data.column_names and any(isinstance(cell, str) for cell in data[name])


def categories(parts: Sequence[Sequence[Any]], name: str, where: str) -> tuple[str, ...]:
    """The different texts of a column, sorted.

    Raises:
        UsageError: a cell is no text.
    """
    for part in parts:
        for row, cell in enumerate(part, 1):
            if not isinstance(cell, str):
                raise _odd("texts", name, where, row, cell)
    return tuple(sorted({cell for part in parts for cell in part}))


def feature(parts: Sequence[Sequence[Any]], name: str, where: str, known: Any) -> Feature:
    """How a column is encoded.

    Args:
        parts: cells of all data sets.
        name: of the column.
        where: the data, in errors.
        known: its categories; None to find them.

    Raises:
        UsageError: it has more than `MOST_CATEGORIES` different texts.
    """
    if not any(isinstance(cell, str) for part in parts for cell in part):
        return Feature(name)
    found = categories(parts, name, where) if known is None else known
    if len(found) > MOST_CATEGORIES:
        raise UsageError(
            f"Expected at most {MOST_CATEGORIES} categories in column {name!r} of {where}, got "
            f"{len(found):,} different texts. Text and other columns are not joined to one input: "
            f"leave {name!r} out, set text = {name!r} without inputs, or give columns, a function "
            "of a row that returns (x, y)."
        )
    return Feature(name, found)


def numbered_classes(
    found: Sequence[Any], names: Sequence[str], name: str, where: str
) -> NDArray[np.int64]:
    """The number of each cell's class, shape (N,).

    Raises:
        UsageError: a cell has another class.
    """
    known = {each: number for number, each in enumerate(names)}
    numbers = [known.get(cell, -1) if isinstance(cell, str) else -1 for cell in found]
    if -1 in numbers:
        row = numbers.index(-1)
        raise _odd(f"one of {', '.join(names[:8])}", name, where, row + 1, found[row])
    return np.array(numbers, np.int64)


def _plain(cell: Any) -> Any:
    """The number of an array or tensor without dimensions."""
    return cell.item() if getattr(cell, "ndim", None) == 0 else cell


def _is_number(cell: Any) -> bool:
    return isinstance(cell, bool | int | float) and abs(cell) <= _LARGEST


def _odd(expected: str, name: str, where: str, row: int, cell: Any) -> UsageError:
    return UsageError(
        f"Expected {expected} in column {name!r} of {where}, got {type(cell).__name__} "
        f"{str(cell)[:40]!r} in row {row}."
    )
