"""Rows of an SQLite database, by a query of one's own: read only, a batch at a time."""

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
"""Read and converted at a time; the rest of a result stays in the database."""


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
    """Read what a query gives; the database is opened read only.

    Args:
        path: of the database.
        query: one SELECT. Order its rows, or their places depend on how it is carried out.
        parameters: for its question marks.
        label: column of targets.
        features: columns of inputs, numbers; all others where left out.
        classes: as in `from_csv`.
        dtype: likewise.
        mean: likewise.
        scale: likewise.

    Raises:
        UsageError: no such database, table or column, or cells that are not what they must be.
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
            "one of those that are alike: SELECT a.id AS a_id, …"
        )
    done = 0
    while rows := cursor.fetchmany(BATCH_ROWS):
        columns = [np.array(cells, dtype=object) for cells in zip(*rows, strict=True)]
        # Rows are counted in what is read together, so say where that begins.
        where = f"{path}" if not done else f"{path} (rows after {done})"
        yield where, dict(zip(names, columns, strict=True))
        done += len(rows)
    if not done:
        yield f"{path}", {name: np.array([], dtype=object) for name in names}
