"""Output of commands: one JSON document, or text and tables."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

JSON = "fedloom.json"
"""Key in a click context's meta: whether `--json` was given."""

PROSE_WIDTH = 24
"""Least width of a column of sentences."""


def wants_json() -> bool:
    """Was `--json` given?"""
    return bool(click.get_current_context().meta.get(JSON))


def emit(document: Any, human: Callable[[], None]) -> None:
    """Print `document` with `--json`, else call `human`."""
    if wants_json():
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        human()


def console(*, stderr: bool = False) -> "Console":
    """The console for tables; without a terminal lines are not wrapped."""
    from rich.console import Console  # noqa: PLC0415 - 60 ms that scripts need not wait

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 10_000
    return Console(file=stream, width=width, highlight=False)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Make a table. A `>` before a column's name aligns it right, a `~` lets it wrap."""
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    cells = [[Text.from_markup(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for i, column in enumerate(columns):
        prose, title = column.startswith("~"), column.lstrip(">~")
        widest = max((row[i].cell_len for row in cells), default=0)
        table.add_column(
            title,
            justify="right" if column.startswith(">") else "left",
            no_wrap=not prose,
            # Half a name is no use: a narrow terminal wraps lines instead of cutting cells.
            min_width=PROSE_WIDTH if prose else max(widest, len(title)),
        )
    for row in cells:
        table.add_row(*row)
    return table


def table_or(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> "RenderableType":
    """A table, or the text `empty` where there are no rows."""
    from rich.text import Text  # noqa: PLC0415 - as above

    found = list(rows)
    return make_table(columns, found) if found else Text(empty)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Print a table, or the text `empty` where there are no rows."""
    if found := list(rows):
        show(make_table(columns, found))
    else:
        click.echo(empty)


def show(what: "RenderableType") -> None:
    """Print something of rich's without trailing blanks."""
    click.echo(rendered(what), nl=False, color=True)


def rendered(what: "RenderableType") -> str:
    """What `show` prints: lines without trailing blanks."""
    from rich.measure import Measurement  # noqa: PLC0415 - as above

    out = console()
    wide = out.options.update(width=10_000)
    out.width = max(out.width, Measurement.get(out, wide, what).minimum)
    with out.capture() as captured:
        out.print(what)
    return re.sub(r" +$", "", captured.get(), flags=re.MULTILINE)


def escape(text: str) -> str:
    """Escape rich's markup and the control characters of a terminal."""
    from rich.markup import escape  # noqa: PLC0415 - as above

    return escape(harmless(text))


def harmless(text: str) -> str:
    r"""Somebody's text without what steers a terminal, or turns the order of what is read.

    >>> harmless("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\nc'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def state(name: str) -> str:
    """A state in its colour."""
    colours = {
        "running": "cyan", "reporting": "cyan", "selecting": "cyan", "closing": "cyan",
        "finished": "green", "committed": "green", "active": "green", "unused": "green",
        "paused": "yellow", "stopped": "yellow", "expired": "yellow",
        "failed": "red", "abandoned": "red", "revoked": "red", "quarantined": "red",
        "drained": "yellow", "left": "yellow", "cancelled": "yellow",
    }  # fmt: skip
    return f"[{colours[name]}]{name}[/]" if name in colours else escape(name)


def duration(seconds: float) -> str:
    """A time span in its two largest units: `850 ms`, `12.3 s`, `2 min 05 s`, `6 d 23 h`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes // 60 % 24:02d} h"


def size(num_bytes: float) -> str:
    """A size in binary units: `184 B`, `38.1 MiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        num_bytes /= 1024
        if num_bytes < 1023.95 or unit == "TiB":
            break
    return f"{num_bytes:.1f} {unit}"


def moment(at: float | None) -> str:
    """A moment in local time, the date only where it is not today."""
    if at is None:
        return "-"
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)


def ahead(at: float | None) -> str:
    """The time until a moment, or since it."""
    if at is None:
        return "-"
    left = at - time.time()
    return f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"


def metrics(measured: dict[str, Any] | None) -> str:
    """Metrics by name: `accuracy 0.9712  loss 0.1034`."""
    values = (measured or {}).get("values") or {}
    return "  ".join(f"{escape(name)} {value:.4g}" for name, value in sorted(values.items()))
