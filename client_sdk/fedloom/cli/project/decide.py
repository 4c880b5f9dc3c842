"""Decides from a table what its columns are: the label, numbers, texts, and what is left out.

Pure. The decisions are printed and written to columns.toml, where a user corrects them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedloom.client.data.columns import (
    NumberColumn,
    Row,
    TableColumns,
    TextColumn,
    TextTable,
    is_missing,
    number_of,
)
from fedloom.protocol.errors import UsageError
from fedloom.strategies.setting_checks import hint

LABELS = ("label", "labels", "target", "class", "outcome", "y")
"""Names of a label's column; otherwise it is the last one."""
MOST_CLASSES = 100
MOST_VALUES = 30
"""Different texts of an input; a column with more is left out."""
FEW_NUMBERS = 10
"""Different whole numbers that a label may have to be classes."""
_SHOWN, _SHOWN_TEXTS = 12, 6
_LARGEST = 1e38
"""Inputs and targets are float32."""
_COMMAS = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+|[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
"""Numbers such as 0,5 and 1.813,20, or 1,813 and 1,813,000.5."""
MISTYPED = 0.1
"""A column with fewer texts among numbers than this share is one of numbers with mistakes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a table was found to hold.

    Attributes:
        columns: label and inputs.
        rows: those that have a label.
        notes: what was decided, as lines.
    """

    columns: TableColumns
    rows: Sequence[Row]
    notes: Sequence[str]


def decide(
    table: TextTable,
    file: str,
    *,
    separator: str = ",",
    label: str | None = None,
    predict: str | None = None,
    leave_out: Sequence[str] = (),
) -> Decision:
    """Decide what the columns of a table are.

    Args:
        table: at least two rows.
        file: its name, for messages.
        separator: of its cells.
        label: column of targets; None to choose it by its name.
        predict: `class` or `number`; None to choose by the label's values.
        leave_out: columns that are no inputs.

    Raises:
        UsageError: a column is missing, a cell does not fit its column, or nothing can be learnt.
    """
    for name in (*leave_out, *([label] if label else [])):
        if name not in table.names:
            raise UsageError(f"Expected a column {name!r} in {file}. {hint(name, table.names)}")
    named = next((n for known in LABELS for n in table.names if n.lower() == known), None)
    chosen = label or named or next(n for n in reversed(table.names) if n not in leave_out)
    if chosen in leave_out:
        raise UsageError(f"Expected another label than the column of sites, got {chosen!r}.")
    at = table.names.index(chosen)
    _check_header(table, at, file)
    rows = [row for row in table.rows if not is_missing(row.cells[at])]
    if len(rows) < 2:
        raise UsageError(
            f"Expected two or more rows with a {chosen!r} in {file}, got {len(rows)}. Choose "
            "another column with --label."
        )
    target, predicts = _target([(r.line, r.cells[at]) for r in rows], chosen, file, predict)
    how = "by --label" if label else "by its name" if named else "the last column"
    notes = [f"predicts  {chosen} ({how}): {predicts}"]
    if len(rows) < len(table.rows):
        lines = [row.line for row in table.rows if is_missing(row.cells[at])]
        some = ", ".join(map(str, lines[:5])) + (", …" if len(lines) > 5 else "")
        notes.append(f"left out  {_count(len(lines), 'row')} without {chosen}: line {some}")
    inputs: dict[str, NumberColumn | TextColumn] = {}
    left: list[str] = [f"{name} (the site)" for name in leave_out]
    for place, name in enumerate(table.names):
        if name == chosen or name in leave_out:
            continue
        found = _input([(row.line, row.cells[place]) for row in rows], name, file)
        if isinstance(found, str):
            left.append(f"{name} ({found})")
        else:
            inputs[name] = found
    if not inputs:
        raise UsageError(
            f"Expected a column of inputs in {file} beside {chosen!r}, got none that varies: "
            f"{'; '.join(left) or 'it has no other column'}."
        )
    notes += _of_inputs(inputs, rows, table.names)
    notes += [f"left out  {each}" for each in left]
    columns = TableColumns(label=chosen, target=target, inputs=inputs, separator=separator)
    return Decision(columns, rows, notes)


def _check_header(table: TextTable, at: int, file: str) -> None:
    """Refuse a table without rows, or without names: its first row would be lost without a word.

    Args:
        table: its names are taken as names if they count the columns.
        at: place of the label.
        file: for the message.
    """
    if not table.rows:
        raise UsageError(f"Expected rows below the first line of {file}, got none.")
    names, places = list(table.names), range(len(table.names))
    if names in ([str(n) for n in places], [str(n + 1) for n in places]):
        return
    numbers = all(number_of(name) is not None for name in names)
    if numbers or any(row.cells[at] == names[at] for row in table.rows):
        raise UsageError(
            f"{file}, line 1: expected names of columns, got values such as {names[at]!r}. Put a "
            "line with names above it."
        )


def _target(
    cells: Sequence[tuple[int, str]], name: str, file: str, predict: str | None
) -> tuple[NumberColumn | TextColumn, str]:
    """The label's classes or scale, and that in words."""
    texts = Counter(cell for _, cell in cells)
    values = [number_of(cell) for cell in texts]
    numeric = all(value is not None for value in values)
    whole = numeric and all(value is not None and value == int(value) for value in values)
    few = len(texts) <= FEW_NUMBERS and whole
    if predict == "number" or (predict is None and not few and _is_number(cells, name, file)):
        numbers = [_number_at(line, cell, name, file) for line, cell in cells]
        scaled = _scaled(numbers, name, file)
        if scaled is None:
            raise UsageError(
                f"Expected different numbers in column {name!r} of {file} to predict, got "
                f"{cells[0][1]} in all rows. Choose another column with --label."
            )
        span = f"{min(numbers):g} to {max(numbers):g}"
        return scaled, f"a number, {span}; a loss of 1 is that of its mean"
    if not 2 <= len(texts) <= min(MOST_CLASSES, len(cells) - 1):
        raise UsageError(
            f"Expected 2 to {MOST_CLASSES} classes in column {name!r} of {file}, got "
            f"{len(texts)} in {len(cells)} rows. Choose another column with --label, or "
            "--predict number."
        )
    classes = sorted(
        texts, key=lambda text: (number_of(text) or 0.0, text) if numeric else (0.0, text)
    )
    shares = ", ".join(f"{text} ({texts[text] / len(cells):.0%})" for text in classes[:6])
    more = ", …" if len(classes) > 6 else ""
    return TextColumn(values=tuple(classes)), f"{len(classes)} classes, {shares}{more}"


def _input(
    cells: Sequence[tuple[int, str]], name: str, file: str
) -> NumberColumn | TextColumn | str:
    """How a column becomes inputs, or why it is left out."""
    known = [(line, cell) for line, cell in cells if not is_missing(cell)]
    texts = Counter(cell for _, cell in known)
    if len(texts) < 2:
        return "no value" if not texts else f"always {next(iter(texts))}"
    if _is_number(known, name, file):
        numbers = [_number_at(line, cell, name, file) for line, cell in known]
        if len(numbers) > 2 and all(b - a == 1 for a, b in pairwise(numbers)):
            return "a running number"
        scaled = _scaled(numbers, name, file)
        return "always the same number" if scaled is None else scaled
    if len(texts) > MOST_VALUES or len(texts) > len(known) // 2:
        some = next(iter(texts))
        return f"{len(texts)} different texts in {_count(len(known), 'row')}, such as {some[:20]!r}"
    return TextColumn(values=tuple(sorted(texts)))


def _is_number(cells: Sequence[tuple[int, str]], name: str, file: str) -> bool:
    """Whether a column is one of numbers.

    Raises:
        UsageError: nearly all its cells are.
    """
    wrong = [(line, cell) for line, cell in cells if number_of(cell) is None]
    if not wrong:
        return True
    if all(_COMMAS.fullmatch(cell) for _, cell in wrong):
        line, cell = wrong[0]
        raise UsageError(
            f"{file}, line {line}, column {name!r}: expected a number with a decimal point and "
            f"without marks between thousands, got {cell!r}. Save the table with such numbers."
        )
    if len(wrong) > MISTYPED * len(cells):
        return False
    line, cell = wrong[0]
    raise UsageError(
        f"{file}, line {line}, column {name!r}: expected a number, as in {len(cells) - len(wrong)} "
        f"of {len(cells)} rows, got {cell!r}. Correct it, or leave the cell empty."
    )


def _number_at(line: int, cell: str, name: str, file: str) -> float:
    value = number_of(cell)
    if value is None:
        raise UsageError(
            f"{file}, line {line}, column {name!r}: expected a number, got {cell!r}. Correct it, "
            "or use --predict class."
        )
    return value


def _scaled(numbers: Sequence[float], name: str, file: str) -> NumberColumn | None:
    """Scale to a mean of 0 and a standard deviation of 1; None if the numbers are all the same."""
    if (largest := max(map(abs, numbers))) > _LARGEST:
        raise UsageError(
            f"Expected numbers up to {_LARGEST:g} in column {name!r} of {file}, got {largest:g}. "
            "Use another unit, or their logarithms."
        )
    mean, deviation = float(np.mean(numbers)), float(np.std(numbers))
    if not deviation > 0:
        return None
    return NumberColumn(mean=float(f"{mean:.5g}"), scale=float(f"{1 / deviation:.4g}"))


def _of_inputs(
    inputs: dict[str, NumberColumn | TextColumn], rows: Sequence[Row], names: Sequence[str]
) -> list[str]:
    numbers = [name for name, column in inputs.items() if isinstance(column, NumberColumn)]
    some = ", ".join(numbers[:_SHOWN]) + (f", … ({len(numbers)})" if numbers[_SHOWN:] else "")
    notes = [f"numbers   {some}"] if numbers else []
    notes += [
        f"texts     {name}: {_listed(column.values)}"
        for name, column in inputs.items()
        if isinstance(column, TextColumn)
    ]
    for name, column in inputs.items():
        place = names.index(name)
        if gaps := sum(is_missing(row.cells[place]) for row in rows):
            filled = "its mean" if isinstance(column, NumberColumn) else "none of its texts"
            notes.append(f"missing   {name} in {_count(gaps, 'row')}: {filled} stands for it")
    return notes


def _listed(values: Sequence[str]) -> str:
    """A few values, each short and on one line."""
    some = ", ".join(" ".join(value.split())[:20] for value in values[:_SHOWN_TEXTS])
    return some + (f", … ({len(values)})" if values[_SHOWN_TEXTS:] else "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
