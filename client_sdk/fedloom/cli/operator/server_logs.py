"""`fedloom server logs`: the last lines of a server's log, and new ones with --follow."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import Duration, server_options

if TYPE_CHECKING:
    from fedloom.cli.connection.api_client import Control

PACE_S = 1.0
PAGE = 1000

_STYLES = {"debug": "dim", "warning": "yellow", "error": "bold red"}

Line = Mapping[str, Any]


@click.command()
@click.option("--follow", is_flag=True, help="Print new lines until Ctrl-C.")
@click.option(
    "--level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
    show_default=True, help="Lowest level.",
)  # fmt: skip
@click.option("--client", default="", help="Only lines about this client.")
@click.option("--run", default="", help="Only lines about this run.")
@click.option(
    "--search", "text", default="", help="Only lines with this text, or from this logger."
)
@click.option("--since", type=Duration(), metavar="TIME", help="Maximum age, such as 15m or 2h.")
@click.option("--limit", type=click.IntRange(1, PAGE), default=50, show_default=True)
@server_options
def logs(  # noqa: PLR0917 - a command's options
    follow: bool, level: str, client: str, run: str, text: str, since: float | None, limit: int,
    directory: Path,
) -> None:  # fmt: skip
    """Show the last lines of a server's log, oldest first.

    --json --follow prints one JSON object per line.

    \b
    Examples:
      fedloom server logs
      fedloom server logs --run digits --level warning --since 2h
      fedloom server logs --client ward-3 --follow
    """
    from fedloom.cli.connection.api_client import Control  # noqa: PLC0415 - it imports grpc

    control = Control(directory)
    asked = {"level": level, "client": client, "run": run, "q": text}
    begin = time.time() - since if since else 0.0
    found = control.get("logs", limit=limit, since=f"{begin:.3f}", **asked)["lines"][::-1]
    if not follow:
        output.emit({"lines": found}, lambda: _show(found))
        return
    show = _show_json if output.wants_json() else _show
    show(found)
    try:
        for new in _coming(control, asked, found, time.time()):
            show(new)
    except KeyboardInterrupt:
        return


def _coming(
    control: "Control", asked: Mapping[str, str], found: list[Line], now: float
) -> Iterator[list[Line]]:
    """New lines, also after a restart of the server, which restarts the ids of lines."""
    from fedloom.protocol.errors import UnavailableError  # noqa: PLC0415 - as above

    latest = found[-1]["at"] if found else now
    seen = {_key(line) for line in found}
    while True:
        time.sleep(PACE_S)
        try:
            page = control.get("logs", limit=PAGE, since=f"{latest:.6f}", **asked)["lines"][::-1]
        except UnavailableError:
            continue
        new = [line for line in page if _key(line) not in seen]
        if new:
            latest = max(latest, new[-1]["at"])
            seen = {_key(line) for line in page}
            yield new


def _key(line: Line) -> tuple[float, int]:
    return line["at"], line["id"]


def _show(lines: list[Line]) -> None:
    console = output.console()
    for line in lines:
        when = output.moment(line["at"])
        text = f"{when} {line['level']:7} {line['logger']}  {line['message']}"
        console.print(output.escape(text), style=_STYLES.get(line["level"]), soft_wrap=True)


def _show_json(lines: list[Line]) -> None:
    for line in lines:
        click.echo(json.dumps(line))
