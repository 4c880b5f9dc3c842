"""`fedloom client log`: shows the device's owner what was sent, when and to whom."""

import json
import shutil
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedloom.cli.common.options import config_option, json_option
from fedloom.cli.common.output import wants_json
from fedloom.protocol.errors import printable

if TYPE_CHECKING:
    from fedloom.client.owner.journal import Entry

COLOURS = {
    "sent": "cyan",
    "accepted": "green",
    "enrolled": "green",
    "renewed": "green",
    "reported": "cyan",
    "declined": "yellow",
    "withdrawn": "bright_black",
    "rejected": "red",
    "refused": "red",
    "failed": "red",
    "left": "yellow",
}
MAX_TEXT = 10_000
_MARGIN = 22
"""Width of the time and the event before an entry's text."""


@click.command()
@config_option
@click.option("-n", "--last", type=click.IntRange(0), default=40, show_default=True, metavar="N",
              help="Entries to show; 0 for all.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Keep printing new entries.")
@json_option
def log(config: Path, last: int, follow: bool) -> None:
    """Show the device's journal: what it sent, when and to whom, and what it declined.

    Reads files of this device only. With --json each entry is one line.

    \b
    Examples:
      fedloom client log
      fedloom client log --follow
      fedloom client log --last 0 --json
    """
    from fedloom.client.config import load  # noqa: PLC0415
    from fedloom.client.owner import journal  # noqa: PLC0415 - help needs none of it

    directory = load(config).state_dir
    entries = list(journal.read(directory))
    show = _Lines()
    if not entries and not follow and not wants_json():
        click.echo("No entries yet: no round has selected this device.")
    show(entries[-last:] if last else entries)
    if follow:
        for entry in journal.follow(directory):
            if entry is not None:
                show([entry])


class _Lines:
    def __init__(self) -> None:
        self._day = ""

    def __call__(self, entries: Iterable["Entry"]) -> None:
        for entry in entries:
            if wants_json():
                click.echo(json.dumps(entry, ensure_ascii=False))
                continue
            at = time.localtime(entry["at"])
            if (day := time.strftime("%A, %Y-%m-%d", at)) != self._day:
                click.secho(f"{chr(10) if self._day else ''}{day}", bold=True)
                self._day = day
            click.echo(line(entry, time.strftime("%H:%M:%S", at)))


def line(entry: "Entry", at: str) -> str:
    """An entry as wrapped lines: the time, the event and its text."""
    event = printable(str(entry["event"]), 9)
    width = max(40, min(shutil.get_terminal_size().columns, 110) - _MARGIN)
    words = printable(str(entry["text"]), MAX_TEXT)
    text = textwrap.wrap(words, width, break_on_hyphens=False) or [""]
    head = f"  {click.style(at, dim=True)}  " + click.style(f"{event:<9}", fg=COLOURS.get(event))
    return "\n".join((f"{head} {text[0]}", *(" " * _MARGIN + more for more in text[1:])))
