"""`--watch`: redraws a command's output when it changes, as text or as JSON lines.

On a terminal the table is redrawn in place, with a line below it while the server is unreachable.
With --json each change is one line on standard output. In a pipe changes are appended.
"""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import F
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.event_stream import Snapshot, follow

if TYPE_CHECKING:
    from rich.console import RenderableType

MOVING = frozenset(
    {
        *("deadline_left_s", "gives_up_in_s", "seen_at", "uptime_s", "left_s"),
        *("time_left_s", "time_left_range_s"),
    }
)
"""Fields that change continuously; their changes are ignored."""


def watch_option(function: F) -> F:
    """`--watch`: run until interrupted."""
    return click.option("--watch", is_flag=True, help="Refresh until interrupted.")(function)


def present(
    control: Control,
    look: Callable[[], Any],
    render: "Callable[[Any], RenderableType]",
    topics: Iterable[str],
    *,
    watching: bool,
) -> None:
    """Show a document once, or with `--watch` until interrupted."""
    if watching:
        watch(control, look, render, topics)
        return
    document = look()
    output.emit(document, lambda: output.show(render(document)))


def watch(
    control: Control,
    look: Callable[[], Any],
    render: "Callable[[Any], RenderableType]",
    topics: Iterable[str],
    over: Callable[[Any], bool] = lambda _: False,
    *,
    end_only: bool = False,
) -> Any:
    """Show a document at each change until it is final; return the final one.

    Args:
        control: the server.
        look: reads the document.
        render: draws it.
        topics: of `/v1/events`, after which it is read again.
        over: whether a document is final.
        end_only: in a pipe, do not print text; the caller prints the final document.

    Raises:
        FedloomError: the first read fails, or the server refuses.
    """
    console = output.console()
    if output.wants_json() or not console.is_terminal:
        return _print(control, look, None if end_only else render, topics, over)
    from rich.console import Group  # noqa: PLC0415 - only on a terminal
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    def drawn(seen: Snapshot) -> "RenderableType":
        # Live counts lines to redraw them, but tables may be wider than the terminal. As text, rich
        # wraps them itself and counts correctly.
        shown = Text.from_ansi(output.rendered(render(seen.document)).rstrip("\n"))
        if seen.lost_s is None:
            return shown
        words = f"The server has not answered for {output.duration(seen.lost_s)}. Retrying ..."
        return Group(shown, Text(words, style="bold red"))

    with Live(console=console, auto_refresh=False) as live:
        for seen in follow(control, look, topics):
            live.update(drawn(seen), refresh=True)
            if over(seen.document):
                return seen.document
    return None


def _print(
    control: Control,
    look: Callable[[], Any],
    render: "Callable[[Any], RenderableType] | None",
    topics: Iterable[str],
    over: Callable[[Any], bool],
) -> Any:
    """Print each change once, as a line of JSON or as text."""
    before, lost, first = None, False, True
    for seen in follow(control, look, topics):
        if lost is not (seen.lost_s is not None):
            lost = not lost
            change = "does not answer, retrying …" if lost else "is back."
            click.echo(f"{control.where} {change}", err=True)
        known = steady(seen.document)
        if known != before:
            before = known
            if output.wants_json():
                click.echo(json.dumps(seen.document, ensure_ascii=False))
            elif render is not None:
                click.echo("", nl=not first)
                output.show(render(seen.document))
            first = False
        if over(seen.document):
            return seen.document
    return None


def steady(document: Any) -> Any:
    """A document without its continuously changing fields.

    >>> steady({"a": [{"seen_at": 1.0, "b": 2}]})
    {'a': [{'b': 2}]}
    """
    if isinstance(document, dict):
        return {k: steady(v) for k, v in document.items() if k not in MOVING}
    if isinstance(document, list):
        return [steady(each) for each in document]
    return document
