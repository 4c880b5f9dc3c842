"""The command `fedloom top`."""

import os
import shutil
import sys
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.event_stream import SILENCE_S
from fedloom.protocol.errors import UsageError


@click.command()
@click.option("--once", is_flag=True, help="Print one screen and exit.")
@server_options
def top(once: bool, directory: Path) -> None:
    """Watch a server live: health, runs, the open round, its clients and recent refusals.

    Keys: j and k move, enter shows one run, p pauses or resumes it, c closes its open round,
    ? shows help, q quits. Actions ask for confirmation. Reconnects after a lost connection.

    With --json, prints `/v1/overview` once.

    \b
    Examples:
      fedloom top
      fedloom top --url https://fl.example.org:7445 --api-token @ci.token
      fedloom top --once | head -3
    """
    control = Control(directory, timeout_s=SILENCE_S)
    if output.wants_json():
        output.emit(control.get("overview"), lambda: None)
    elif once:
        _print(control)
    elif not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise UsageError("This needs a terminal. --once prints one screen, --json prints data.")
    else:
        from fedloom.cli.top.screen import Screen  # noqa: PLC0415 - it imports rich

        Screen(control).run()


def _print(control: Control) -> None:
    from rich.console import Group  # noqa: PLC0415 - as above

    from fedloom.cli.top import screen  # noqa: PLC0415

    size = shutil.get_terminal_size()
    lines = screen.once(control, size.columns, max(24, size.lines - 1))
    while lines and not lines[-2].plain.strip():
        del lines[-2]
    output.show(Group(*lines[:-1]))
