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
"""Minimum width of a column of sentences."""

COLOURS = {
    "running": "cyan", "reporting": "cyan", "selecting": "cyan", "closing": "cyan",
    "training": "cyan", "masking": "cyan", "sharing": "cyan", "frozen": "cyan", "agreeing": "cyan",
    "revealing": "cyan", "unmasking": "cyan",
    "finished": "green", "committed": "green", "active": "green", "unused": "green",
    "reported": "green", "ready": "green", "done": "green",
    "paused": "yellow", "stopped": "yellow", "expired": "yellow", "drained": "yellow",
    "left": "yellow", "queued": "yellow", "cancelled": "yellow", "late": "yellow", "lost": "yellow",
    "failed": "red", "abandoned": "red", "revoked": "red", "quarantined": "red", "refused": "red",
    "failing": "red", "cooling": "red",
    "declined": "dim",
}  # fmt: skip
"""Colours of states: of runs, rounds, masking sessions, clients, tokens, members of a round."""


def wants_json() -> bool:
    """Whether `--json` was given."""
    return bool(click.get_current_context().meta.get(JSON))


def emit(document: Any, human: Callable[[], None]) -> None:
    """Print `document` with `--json`, else call `human`."""
    if wants_json():
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        human()


def emit_text(document: Any, text: str) -> None:
    """Print `document` with `--json`, else `text`."""
    emit(document, lambda: click.echo(text))


def emit_table(
    document: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str
) -> None:
    """Print `document` with `--json`, else a table, or `empty` if there are no rows."""
    emit(document, lambda: print_table(columns, rows, empty))


def console(*, stderr: bool = False) -> "Console":
    """The console for tables; it wraps lines only on a terminal."""
    from rich.console import Console  # noqa: PLC0415 - the import takes 60 ms

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 10_000
    return Console(file=stream, width=width, highlight=False)


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], required: int | None = None
) -> "Table":
    """Make a table.

    Args:
        columns: titles; a `>` before a title aligns the column right, a `~` lets it wrap.
        rows: cells, in rich's markup.
        required: later columns are left out if all their cells are empty or `-`; None keeps all.
    """
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    texts = list(rows)
    kept = [
        i
        for i in range(len(columns))
        if required is None or i < required or any(row[i] not in ("", "-") for row in texts)
    ]
    cells = [[Text.from_markup(row[i]) for i in kept] for row in texts]
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for i, column in enumerate(columns[i] for i in kept):
        prose, title = column.startswith("~"), column.lstrip(">~")
        widest = max((row[i].cell_len for row in cells), default=0)
        table.add_column(
            title,
            justify="right" if column.startswith(">") else "left",
            no_wrap=not prose,
            # A narrow terminal wraps lines; cut cells would hide parts of names.
            min_width=PROSE_WIDTH if prose else max(widest, len(title)),
        )
    for row in cells:
        table.add_row(*row)
    return table


def table_or(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> "RenderableType":
    """A table, or the text `empty` if there are no rows."""
    from rich.text import Text  # noqa: PLC0415 - as above

    found = list(rows)
    return make_table(columns, found) if found else Text(empty)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Print a table, or the text `empty` if there are no rows."""
    if found := list(rows):
        show(make_table(columns, found))
    else:
        click.echo(empty)


def show(what: "RenderableType") -> None:
    """Print a renderable of rich without trailing blanks."""
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
    r"""Text with its control and bidirectional characters escaped.

    >>> harmless("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\nc'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def failure(each: dict[str, Any]) -> str:
    """Members of a round that failed in the same way."""
    message = harmless(each["message"]) or "without a message"
    return f"{each['count']} {each['how']}: {message} (such as {harmless(each['client'])})"


def state(name: str) -> str:
    """A state in its colour."""
    return f"[{COLOURS[name]}]{name}[/]" if name in COLOURS else escape(name)


def or_dash(value: Any, form: Callable[[Any], str] = str) -> str:
    """A value as text, or `-` for None."""
    return "-" if value is None else form(value)


def four_digits(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """A duration in its two largest units: `850 ms`, `12.3 s`, `2 min 05 s`, `6 d 23 h`."""
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


def time_left(run: dict[str, Any]) -> str:
    """The time left of a run: expected, or a range while it is uncertain; `-` while unknown.

    >>> time_left({"time_left_s": 130.0, "time_left_range_s": [20.0, 240.0]})
    '20 s to 4 min'
    >>> time_left({"time_left_s": 130.0, "time_left_range_s": None}), time_left({})
    ('2 min 10 s', '-')
    """
    if between := run.get("time_left_range_s"):
        low, high = (_roughly(seconds) for seconds in between)
        return f"{low} to {high}" if between[0] >= 1 else f"up to {high}"
    return or_dash(run.get("time_left_s"), duration)


def _roughly(seconds: float) -> str:
    for unit, of in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * of:
            return f"{seconds / of:.0f} {unit}"
    return f"{seconds:.0f} s"


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
    """A time in the local zone; with the date unless it is today."""
    if at is None:
        return "-"
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)


def ahead(at: float | None) -> str:
    """The duration until a time, or since it."""
    if at is None:
        return "-"
    left = at - time.time()
    return f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"


def metrics(measured: dict[str, Any] | None, *, spread: bool = False) -> str:
    """Metrics by name: `accuracy 0.9712  loss 0.1034`; with medians where means disagree.

    Args:
        measured: a round's training or evaluation; None for nothing.
        spread: with median and quartiles of each metric.
    """
    found = measured or {}
    return "  ".join(
        f"{escape(name)} {metric(found, name, spread=spread)}"
        for name in sorted(found.get("values") or {})
    )


def metric(found: dict[str, Any], name: str, *, spread: bool = False) -> str:
    """One of a round's metrics, as `metrics` shows it; a dash if it was not measured."""
    value = (found.get("values") or {}).get(name)
    return "-" if value is None else f"{value:.4g}{_middle(found, name, spread=spread)}"


def _middle(found: dict[str, Any], name: str, *, spread: bool) -> str:
    """The median and the quartiles of a metric, and whether the mean is outside them."""
    quantiles = (found.get("quantiles") or {}).get(name, {})
    differs = name in found.get("disagree", ())
    if "0.25" not in quantiles or not (spread or differs):
        return ""
    low, median, high = (f"{quantiles[share]:.4g}" for share in ("0.25", "0.5", "0.75"))
    half = f", half of the clients {low} to {high}" if spread else ""
    return f" (median {median}{half}{': disagrees' if differs else ''})"
