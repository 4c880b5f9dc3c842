"""Sorts a query by one of its list's columns and cuts a page out of it.

Invariants: rows without a value come last in both directions; rows of equal value come in the order
of the key, so pages neither repeat nor omit a row of an unchanged table.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from fedloom.protocol.errors import UsageError

T = TypeVar("T")

METRIC = "metric."
"""Prefix of the columns of metrics, whose names clients choose."""

_PLAIN = re.compile(r"[^\"\\\x00-\x1f]{1,120}")
"""Metrics that can be sorted by: SQLite's JSON paths have no way to quote the others."""


_AT_ONCE = 1000
"""Rows that are fetched from the database at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A page of a list.

    Attributes:
        sort: name of a column; empty for the list's own order.
        descending: whether the largest comes first.
        offset: rows before the page.
        limit: most rows; 0 for all.
    """

    sort: str = ""
    descending: bool = False
    offset: int = 0
    limit: int = 0


Columns = Mapping[str, sa.ColumnElement[Any]]
"""What each column of a list is sorted by, by name."""


def cut(
    query: sa.Select[Any],
    page: Cut,
    columns: Columns,
    key: Sequence[sa.ColumnElement[Any]],
    metrics: sa.ColumnElement[Any] | Sequence[sa.ColumnElement[Any]] = (),
) -> sa.Select[Any]:
    """A page of a query.

    Args:
        query: of the list's rows, not ordered.
        page: to cut.
        columns: by which it can be sorted.
        key: the list's own order, as expressions to order by; unique.
        metrics: JSON columns with `values`; the first that has a metric gives its value.

    Raises:
        UsageError: the list has no such column.
    """
    order = list(key)
    if page.sort:
        if page.sort.startswith(METRIC) and metrics:
            by = metric(page.sort.removeprefix(METRIC), metrics)
        elif page.sort in columns:
            by = columns[page.sort]
        else:
            raise _unknown(page.sort, columns)
        order.insert(0, (by.desc() if page.descending else by.asc()).nulls_last())
    query = query.order_by(*order)
    if page.limit:
        query = query.limit(page.limit)
    elif page.offset:
        query = query.limit(2**31)  # SQLite has no offset without a limit
    return query.offset(page.offset) if page.offset else query


def each(engine: sa.Engine, query: sa.Select[Any]) -> Iterator[sa.RowMapping]:
    """The rows of a query one after another, few of them in memory at a time."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":  # the reader may be slow, and holds no locks
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        found = connection.execute(query, execution_options={"yield_per": _AT_ONCE})
        yield from found.mappings()


def metric(name: str, found: Any) -> sa.ColumnElement[Any]:
    """A metric's mean in the first of some JSON columns that has it; see `is_sortable`.

    Raises:
        UsageError: the name cannot be an element of a JSON path.
    """
    if not is_sortable(name):
        raise UsageError(
            f"Expected a metric without quotes or backslashes to sort by, got {name[:120]!r}."
        )
    columns = found if isinstance(found, Sequence) else (found,)
    # One key at a time: PostgreSQL's paths take commas and braces apart.
    values = [finite(column)["values"][name].as_float() for column in columns]
    return values[0] if len(values) == 1 else sa.func.coalesce(*values)


def is_sortable(name: str) -> bool:
    """Whether lists can be sorted by a metric of this name."""
    return _PLAIN.fullmatch(name) is not None


class finite(sa.sql.functions.FunctionElement[Any]):  # noqa: N801 - an SQL function
    """A JSON column in which numbers that are not finite are null: SQLite refuses to read them."""

    type = sa.JSON()
    inherit_cache = True


@compiles(finite)
def _as_it_is(element: Any, compiler: Any, **more: Any) -> str:
    return str(compiler.process(element.clauses, **more))


@compiles(finite, "sqlite")
def _replaced(element: Any, compiler: Any, **more: Any) -> str:
    text = str(compiler.process(element.clauses, **more))
    for value in ("-Infinity", "Infinity", "NaN"):
        text = f"replace({text}, '\": {value}', '\": null')"  # not in the name of a metric
    return text


def like(column: sa.ColumnElement[Any], text: str) -> sa.ColumnElement[bool]:
    """Whether a column contains a text; case is ignored."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return column.ilike(f"%{escaped}%", escape="\\")


def in_order(rows: Iterable[T], value: Callable[[T], Any], *, descending: bool) -> list[T]:
    """Rows sorted by a value as `cut` sorts them, for values that no table holds.

    Args:
        rows: in the list's own order, which rows of equal value keep.
        value: of a row; None or NaN if it has none.
        descending: whether the largest comes first.

    >>> in_order([3, 1, 2], lambda n: None if n == 3 else n, descending=True)
    [2, 1, 3]
    """
    known: list[tuple[Any, T]] = []
    without: list[tuple[Any, T]] = []
    for row in rows:
        found = value(row)
        (without if found is None or _is_nan(found) else known).append((found, row))
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known + without]


def page_of(rows: Sequence[T], page: Cut, values: Mapping[str, Callable[[T], Any]]) -> Sequence[T]:
    """A page of rows that are in memory, as `cut` makes it of a query.

    Args:
        rows: in the list's own order.
        page: to cut.
        values: of a row, by the name of a column.

    Raises:
        UsageError: the list has no such column.
    """
    if page.sort:
        if page.sort not in values:
            raise _unknown(page.sort, values)
        rows = in_order(rows, values[page.sort], descending=page.descending)
    return rows[page.offset : page.offset + page.limit] if page.limit else rows[page.offset :]


def _unknown(name: str, columns: Iterable[str]) -> UsageError:
    known = ", ".join(columns)
    return UsageError(f"Expected a column to sort by ({known}), got {name[:80]!r}.")


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
