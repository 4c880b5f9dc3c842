"""Answers with a table as a CSV file (RFC 4180).

Rows are read, written and dropped in pieces. With all of 40,000 rows in memory, one collection of
Python's garbage stopped every thread of the server for 0.2 s.

Invariants: the work is in a thread that is not the event loop's; the file is whole before the
answer begins, so an error is answered as one and not as a short file.
"""

import asyncio
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from fastapi.responses import StreamingResponse

from fedloom.protocol.errors import UsageError

MAX_ROWS = 100_000
PIECE = 1000
"""Rows that are written at once."""

IN_MEMORY_BYTES = 2**22
"""A larger file is on the disk while it is sent."""

_SENT_BYTES = 2**18
_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
"""First characters of a text that a spreadsheet would evaluate."""


async def csv_file(
    name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> StreamingResponse:
    """A table as a file to download.

    Args:
        name: of the file, without the time and the extension.
        columns: names of the columns.
        rows: values of each row; read in a thread.

    Raises:
        UsageError: there are more than `MAX_ROWS` rows.
    """
    file, size_bytes = await asyncio.to_thread(_write, columns, rows)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    headers = {
        "content-disposition": f'attachment; filename="{plain}-{stamp}.csv"',
        "content-length": str(size_bytes),
        "cache-control": "no-store",
    }
    kind = "text/csv; charset=utf-8; header=present"
    return StreamingResponse(_parts(file), media_type=kind, headers=headers)


def _write(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> tuple[IO[bytes], int]:
    """The table as a temporary file, and its size."""
    with ExitStack() as stack:
        file = stack.enter_context(SpooledTemporaryFile(IN_MEMORY_BYTES))
        for piece in csv_pieces(columns, rows):
            file.write(piece.encode())
        size_bytes = file.tell()
        file.seek(0)
        stack.pop_all()
    return file, size_bytes


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    """The content of a file, which is closed then."""
    with file:
        while part := file.read(_SENT_BYTES):
            yield part


def csv_pieces(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """A table in pieces of `PIECE` rows, with a first row of names.

    Raises:
        UsageError: there are more than `MAX_ROWS` rows.
    """
    yield as_csv([columns])
    rest = iter(rows)
    few = islice(rest, MAX_ROWS)
    while piece := as_csv(islice(few, PIECE)):
        yield piece
    if next(rest, None) is not None:
        raise UsageError(f"More than {MAX_ROWS} rows match: narrow the filters, then download.")


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    r"""Rows as CSV, whose texts no spreadsheet takes for formulas.

    >>> as_csv([["a", "b"], ["=1+1", 0.5], ["b, c", None]])
    'a,b\r\n\'=1+1,0.5\r\n"b, c",\r\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A value as text or number; a text that begins like a formula gets an apostrophe."""
    kind = type(value)
    if kind is float or kind is int or value is None:
        return value
    if kind is bool:
        return "true" if value else "false"
    text = value if isinstance(value, str) else json.dumps(value)
    return f"'{text}" if _FORMULA.match(text) else text
