"""Examples from a query of an SQLite database, which is opened read-only."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedloom.client.data.shard import Arrays
from fedloom.client.data.tables import Columns, shard_of
from fedloom.protocol.errors import UsageError

BATCH_ROWS = 4096
"""Rows that are read and converted at a time."""


def from_sqlite(
    path: str | Path,
    query: str,
    parameters: Sequence[Any] = (),
    *,
    label: str,
    features: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    dtype: Any = np.float32,
    mean: Any = 0.0,
    scale: Any = 1.0,
) -> Arrays:
    """Read the result of a query; the database is opened read-only.

    Args:
        path: of the database.
        query: one SELECT. Add ORDER BY, or the order of the examples is undefined.
        parameters: for its question marks.
        label: column of targets.
        features: columns of inputs, numbers. Default: all others.
        classes: as in `from_csv`.
        dtype: as in `from_csv`.
        mean: as in `from_csv`.
        scale: as in `from_csv`.

    Raises:
        UsageError: the database, a table or a column is missing, or a cell is not valid.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(f"Expected an SQLite database at {path}, got no such file.")
    try:
        uri = f"file:{quote(str(path.resolve()))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return shard_of(
                _blocks(database, path, query, parameters),
                label=label,
                features=features,
                classes=classes,
                dtype=dtype,
                mean=mean,
                scale=scale,
            )
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise UsageError(f"Expected {path} to answer {query!r}, got: {error}.") from error


def _blocks(
    database: sqlite3.Connection, path: Path, query: str, parameters: Sequence[Any]
) -> Iterator[tuple[str, Columns]]:
    cursor = database.execute(query, tuple(parameters))
    names = [column[0] for column in cursor.description or ()]
    if len(set(names)) != len(names):
        raise UsageError(
            f"Expected different names of columns from {query!r}, got {', '.join(names)}. Rename "
            "one of the duplicates: SELECT a.id AS a_id, …"
        )
    done = 0
    while rows := cursor.fetchmany(BATCH_ROWS):
        columns = [np.array(cells, dtype=object) for cells in zip(*rows, strict=True)]
        # Row numbers in errors count from the start of a batch.
        where = f"{path}" if not done else f"{path} (rows after {done})"
        yield where, dict(zip(names, columns, strict=True))
        done += len(rows)
    if not done:
        yield f"{path}", {name: np.array([], dtype=object) for name in names}
