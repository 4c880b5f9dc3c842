"""One list as a request wants it: columns, order, filters and page, all of them in its URL.

A list is a table of columns that people sort, choose and download. Every link keeps what the URL
holds, so a reload, the back button and live refreshes show the same list.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from fedloom.protocol.errors import UsageError
from fedloom.server.http.csv_files import MAX_ROWS, csv_file
from fedloom.server.ledger.lists.order import METRIC, Cut, is_sortable, page_of
from fedloom.server.threads import Thread

MAX_PAGE = 10_000
ALWAYS = ("loss", "accuracy")
"""Metrics that a list shows unless others were chosen."""


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of a list.

    Attributes:
        name: in the URL and in CSV.
        title: of its header.
        value: of a row, for CSV: a number, a text, or None.
        num: whether it holds numbers, which are aligned right.
        shown: whether it is shown unless columns were chosen.
        first: the direction of its first sorting: the largest or newest first if True.
        hint: what the title leaves out.
    """

    name: str
    title: str
    value: Callable[[Any], Any]
    _: KW_ONLY
    num: bool = False
    shown: bool = True
    first: bool = False
    hint: str = ""

    @property
    def metric(self) -> str:
        """The metric that it shows; empty for other columns."""
        return self.name.removeprefix(METRIC) if self.name.startswith(METRIC) else ""

    @property
    def sorts(self) -> bool:
        """Whether the list can be sorted by it."""
        return not self.metric or is_sortable(self.metric)

    @property
    def key(self) -> str:
        """Its name among those of other columns, which commas separate."""
        return self.name.replace("%", "%25").replace(",", "%2C")


def metric_columns(
    names: Iterable[str], value: Callable[[Any], Mapping[str, Any]], shown: Sequence[str] = ALWAYS
) -> list[ListColumn]:
    """Columns of metrics.

    Args:
        names: of the metrics.
        value: gives a row's metrics by name.
        shown: those to show unless columns were chosen.
    """

    def read(name: str) -> Callable[[Any], Any]:
        return lambda row: value(row).get(name)

    return [
        ListColumn(
            name=f"{METRIC}{name}", title=name[:1].upper() + name[1:], value=read(name),
            num=True, shown=name in shown, first=name != "loss",
        )
        for name in names
    ]  # fmt: skip


def metric_names(
    asked: "Listing", rows: Iterable[Any], value: Callable[[Any], Mapping[str, Any]]
) -> list[str]:
    """Metrics of rows, and those that the URL names; `ALWAYS` first."""
    found = {name for row in rows for name in value(row)}
    wanted = (*asked.chosen, asked.sort)
    found |= {name.removeprefix(METRIC) for name in wanted if name.startswith(METRIC)}
    return sorted(found, key=lambda name: (name not in ALWAYS, name == "accuracy", name))


@dataclass(slots=True, kw_only=True)
class Listing:
    """A list as a request wants it.

    Attributes:
        path: of the page.
        prefix: of the names of its values in the URL, where a page has several lists; also the id
            of its section in the page.
        rest: values in the URL that are not of this list.
        filters: values of the filters by name.
        sort: column; empty for the list's own order.
        descending: whether the largest comes first.
        page: number of the page, from 1.
        limit: rows of a page.
        chosen: names of the chosen columns; empty for the usual ones.
        own: how the list's own order is called.
        key: the column of the list's own order, and whether it descends.
        as_csv: whether all matching rows are wanted as CSV.
        columns: all columns.
        rows: of the page.
        more: whether rows follow.
        found: all rows, for CSV.
    """

    path: str
    prefix: str
    rest: dict[str, str]
    filters: dict[str, str]
    sort: str
    descending: bool
    page: int
    limit: int
    chosen: tuple[str, ...]
    own: str
    key: tuple[str, bool]
    as_csv: bool
    columns: list[ListColumn] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    more: bool = False
    found: Iterable[Any] = ()

    def cut(self) -> Cut:
        """The page to read, with one row more, which tells whether others follow."""
        offset, most = (0, MAX_ROWS) if self.as_csv else (self._before, self.limit)
        return Cut(sort=self.sort, descending=self.descending, offset=offset, limit=most + 1)

    @property
    def _before(self) -> int:
        """Rows before the page."""
        return (self.page - 1) * self.limit

    async def read(
        self, in_reader: Thread, rows: Callable[[], Iterable[Any]], columns: Sequence[ListColumn]
    ) -> None:
        """Take the rows of `cut` from where they are; those of a file are read as it is written.

        Args:
            in_reader: threads for a page's rows.
            rows: gives them.
            columns: as of `fill`.
        """
        self.fill(rows() if self.as_csv else await in_reader(lambda: list(rows())), columns)

    @property
    def reach(self) -> int:
        """How many rows in the list's own order the page needs; 0 for all."""
        page = self.cut()
        return (
            0
            if self.sort or self.as_csv or any(self.filters.values())
            else (page.offset + page.limit)
        )

    def cut_out(
        self,
        rows: Sequence[Any],
        columns: Sequence[ListColumn],
        later: Sequence[ListColumn] = (),
        metrics: Callable[[Any], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        """Take the page out of all rows that match, in the list's own order, and the columns.

        Args:
            rows: that match the filters, the first `reach` of them at least.
            columns: before those of metrics.
            later: after them.
            metrics: gives a row's metrics by name.

        Raises:
            UsageError: as `fill`, or a column to sort by does not exist.
        """
        values = {column.name: column.value for column in (*columns, *later)}
        if self.sort.startswith(METRIC):
            [column] = metric_columns([self.sort.removeprefix(METRIC)], metrics)
            values[column.name] = column.value
        found = page_of(rows, self.cut(), values)
        names = metric_names(self, found, metrics)
        self.fill(found, (*columns, *metric_columns(names, metrics), *later))

    def fill(self, rows: Iterable[Any], columns: Sequence[ListColumn]) -> None:
        """Take the rows of `cut` and the columns.

        Raises:
            UsageError: a chosen column does not exist.
        """
        self.columns = list(columns)
        known = {column.name for column in columns}
        unknown = [n for n in self.chosen if n not in known and not n.startswith(METRIC)]
        if unknown:
            raise UsageError(f"Expected columns of {', '.join(known)}, got {unknown[0][:80]!r}.")
        if self.as_csv:
            self.found = rows
        else:
            found = list(rows)
            self.rows, self.more = found[: self.limit], len(found) > self.limit

    @property
    def keys(self) -> str:
        """The chosen columns, as in the URL; a chosen one may not exist any more."""
        return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in self.chosen)

    @property
    def shown(self) -> list[ListColumn]:
        """The columns to show."""
        if not self.chosen:
            return [column for column in self.columns if column.shown]
        return [column for column in self.columns if column.name in self.chosen]

    def name(self, name: str) -> str:
        """The name of one of its values in the URL."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def values(self, **changes: Any) -> dict[str, Any]:
        """What the URL of this list holds, with changes; without `page`, its first page."""
        own = {
            **self.filters,
            "sort": f"{'-' if self.descending else ''}{self.sort}",
            "columns": self.keys,
            **changes,
        }
        return self.rest | {self.name(name): value for name, value in own.items() if value}

    def besides(self, *names: str) -> dict[str, Any]:
        """What its URL holds besides some of its own values: hidden fields of their form."""
        own = {self.name(name) for name in names}
        return {name: value for name, value in self.values().items() if name not in own}

    @property
    def action(self) -> str:
        """Where its forms lead: to its section in the page."""
        return f"{self.path}#{self.prefix}" if self.prefix else self.path

    def url(self, **changes: Any) -> str:
        """The URL of this list with other values; without `page`, its first page."""
        query = urlencode(self.values(**changes), safe=",", quote_via=quote)
        path, _, section = self.action.partition("#")
        return f"{path}{query and '?'}{query}{section and '#'}{section}"

    def sorted_by(self, column: ListColumn) -> str:
        """The URL of this list sorted by a column, the other way round if it is already."""
        now, down = (self.sort, self.descending) if self.sort else self.key
        descending = not down if now == column.name else column.first
        if (column.name, descending) == self.key:
            return self.url(sort="")
        return self.url(sort=f"{'-' if descending else ''}{column.name}")

    def direction(self, column: ListColumn) -> str:
        """The value of `aria-sort` for a column; empty if the list is not sorted by it."""
        now, down = (self.sort, self.descending) if self.sort else self.key
        return ("descending" if down else "ascending") if now == column.name else ""

    async def csv(self, name: str) -> Response:
        """All rows with all columns as a file.

        Raises:
            UsageError: there are too many rows.
        """
        values = ([column.value(row) for column in self.columns] for row in self.found)
        return await csv_file(name, [column.name for column in self.columns], values)


def listing(
    request: Request,
    *filters: str,
    key: str,
    own: str,
    limit: int = 100,
    descending: bool = False,
    prefix: str = "",
) -> Listing:
    """What a request wants of a list.

    Args:
        request: of the browser.
        filters: names of the list's filters.
        key: the column of the list's own order.
        own: how that order is called.
        limit: rows of a page.
        descending: whether that order descends.
        prefix: of its values in the URL, for all but one of the lists of a page: with `runs`, it
            is sorted by `runs.sort`.

    Raises:
        UsageError: the number of the page is not one.
    """
    query = request.query_params

    def asked(name: str) -> str:
        return query.get(f"{prefix}.{name}" if prefix else name, "")

    sort, page = asked("sort")[:120], asked("page") or "1"
    if not (re.fullmatch("[0-9]{1,5}", page) and 1 <= int(page) <= MAX_PAGE):
        raise UsageError(f"Expected page as a number from 1 to {MAX_PAGE}, got {page[:80]!r}.")
    chosen = ",".join(query.getlist(f"{prefix}.columns" if prefix else "columns"))[:2000]
    names = (name.replace("%2C", ",").replace("%25", "%") for name in chosen.split(","))
    return Listing(
        path=quote(request.url.path),
        prefix=prefix,
        rest=_rest(query, prefix, filters),
        filters={name: asked(name).strip()[:300] for name in filters},
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        page=int(page),
        limit=limit,
        chosen=tuple(dict.fromkeys(name for name in names if name)),
        own=own,
        key=(key, descending),
        as_csv=asked("as") == "csv",
    )


def _rest(query: Mapping[str, str], prefix: str, filters: Sequence[str]) -> dict[str, str]:
    """What a URL holds besides the values of one list: those of the page and of other lists."""
    found = {}
    for name, value in query.items():
        of, _, what = name.rpartition(".")
        is_own = of == prefix and (prefix or what in (*filters, "sort", "columns", "page"))
        if not is_own and what not in ("as", "part", "focus") and (prefix or of):
            found[name] = value[:2000]
    return found


def utc(at: float | None) -> str | None:
    """A time in CSV: ISO 8601 in UTC, to the millisecond.

    >>> utc(0.5), utc(None)
    ('1970-01-01T00:00:00.500Z', None)
    """
    if at is None:
        return None
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


Answer = HTMLResponse | Response
"""A page, or its list as CSV."""
