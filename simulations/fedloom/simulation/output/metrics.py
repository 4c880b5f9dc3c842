"""Rounds as lines of JSON and as a CSV table, written as they end.

The JSON lines are the record: all values of a round, one object per round, each flushed at once.
The table is for people and spreadsheets: numbers only, one row per round, derived from the lines.

Invariants: no round appears twice; an incomplete line or row of a process that died is cut off when
the files are opened again; the order of the table's columns is fixed, and a new metric rewrites the
file atomically. JSON has no NaN: a metric that was measured and is not finite is null.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import IntegrityError
from fedloom.simulation.output.curves import PHASES, SOURCES, balance
from fedloom.simulation.output.history import RoundRecord, WorkerShare

_BASE = (
    *("round", "trained", "kind", "state", "reason", "cohort", "accepted", "examples"),
    *(
        "staleness",
        "bytes_down",
        "bytes_up",
        "total_bytes",
        "train_passes",
        "eval_passes",
        "virtual_s",
        "wall_s",
        "round_wall_s",
        "clients_per_s",
        "balance",
    ),
)
_PHASE_COLUMNS = tuple(f"counts.{phase}" for phase in PHASES)
_GROUPS = ("counts", *reversed(SOURCES))
_FIELDS = {field.name for field in fields(RoundRecord)}


def to_line(record: RoundRecord) -> str:
    """A round as one line of JSON, with a newline."""
    return json.dumps(plain(record.as_dict()), allow_nan=False, ensure_ascii=False) + "\n"


def from_line(line: str) -> RoundRecord:
    """The round of a line.

    Raises:
        ValueError: the line is not a round.
    """
    values = json.loads(line)
    if not isinstance(values, dict) or not values.keys() <= _FIELDS:
        raise ValueError("not a round")
    for name in SOURCES:
        known = values.get(name, {})
        values[name] = {key: math.nan if v is None else v for key, v in known.items()}
    try:
        shares = tuple(WorkerShare(**share) for share in values.pop("shares", ()))
        return RoundRecord(**values, shares=shares)
    except TypeError as error:
        raise ValueError(str(error)) from error


def read(path: Path) -> list[RoundRecord]:
    """All rounds of a metrics.jsonl; an incomplete last line is ignored.

    Args:
        path: of the file; a missing file has no rounds.

    Raises:
        IntegrityError: a line before the last is not a round.
    """
    if not path.exists():
        return []
    # Text after the last newline is incomplete.
    lines = path.read_bytes().split(b"\n")[:-1]
    records = []
    for place, line in enumerate(lines, start=1):
        try:
            records.append(from_line(line.decode()))
        except ValueError as error:
            raise IntegrityError(
                f"Line {place} of {path} is not a round: {line[:60]!r}. Remove the line if you "
                "know its origin, or start in another folder."
            ) from error
    return records


def row(record: RoundRecord) -> dict[str, str]:
    """A round by column of the table, as text; values that were not measured are omitted."""
    return {name: _cell(value) for name, value in values(record).items()}


def values(record: RoundRecord) -> dict[str, Any]:
    """A round by column of the table; values that were not measured are omitted."""
    found: dict[str, Any] = {name: getattr(record, name, None) for name in _BASE}
    found["balance"] = balance(record)
    for group in _GROUPS:
        measured: Mapping[str, float] = getattr(record, group)
        found |= {f"{group}.{name}": value for name, value in measured.items()}
        spread = record.spread.get(group, {})
        found[f"{group}.disagree"] = " ".join(spread.get("disagree", ()))
        quantiles = spread.get("quantiles", {})
        for name, shares in quantiles.items():
            found |= {f"{group}.{name}.q{share}": value for share, value in shares.items()}
    if record.epsilon is not None:
        found["privacy.epsilon"] = record.epsilon
    if record.underflow is not None:
        found["sum.underflow"] = record.underflow
    return {name: value for name, value in found.items() if value not in (None, "")}


def columns(names: Iterable[str]) -> list[str]:
    """The table's columns in order: those of every round, then metrics by name."""
    fixed = (*_BASE, *_PHASE_COLUMNS)
    metrics = [name for name in dict.fromkeys(names) if name not in fixed]

    def place(name: str) -> tuple[int, str]:
        return (*_GROUPS, "privacy", "sum").index(name.partition(".")[0]), name

    return [*fixed, *sorted(metrics, key=place)]


class Metrics:
    """The two files of a folder, open for appending."""

    def __init__(self, folder: Path) -> None:
        self._lines_path = folder / "metrics.jsonl"
        self._table_path = folder / "metrics.csv"
        self.rewrite(read(self._lines_path))

    def rewrite(self, records: Sequence[RoundRecord]) -> None:
        """Replace both files' contents, each atomically."""
        self.close()
        write_whole(self._lines_path, "".join(map(to_line, records)), sync=True)
        self._rewrite_table(list(map(row, records)))
        self._lines: IO[str] = self._lines_path.open("a", encoding="utf-8")

    def records(self) -> list[RoundRecord]:
        """All rounds that the files hold, in order."""
        return read(self._lines_path)

    def append(self, record: RoundRecord) -> None:
        """Add a round to both files and flush them."""
        self._lines.write(to_line(record))
        self._lines.flush()
        cells = row(record)
        if not cells.keys() <= set(self._columns):
            self._table.close()
            with self._table_path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            self._rewrite_table([*rows, cells])
            return
        self._table.write(_csv([self._listed(cells)]))
        self._table.flush()

    def close(self) -> None:
        """Close both files; may be called more than once."""
        for name in ("_lines", "_table"):
            if file := getattr(self, name, None):
                file.close()

    def _rewrite_table(self, rows: Sequence[Mapping[str, str]]) -> None:
        self._columns = columns(name for values in rows for name, text in values.items() if text)
        write_whole(self._table_path, _csv([self._columns, *map(self._listed, rows)]), sync=True)
        self._table: IO[str] = self._table_path.open("a", encoding="utf-8", newline="")

    def _listed(self, values: Mapping[str, str]) -> list[str]:
        return [values.get(name, "") for name in self._columns]


def plain(value: Any) -> Any:
    """A value for JSON: numpy's numbers become Python's, and numbers that are not finite null."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    value = plain(value) if hasattr(value, "item") else value
    if (isinstance(value, float) and not math.isfinite(value)) or value is None:
        return "nan"
    return str(value)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
