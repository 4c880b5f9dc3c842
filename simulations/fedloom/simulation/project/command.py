"""`fedloom up`: train in a folder of `fedloom new`, on this machine."""

import importlib.util
import signal
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import FILE, json_option
from fedloom.protocol.errors import UsageError

_NEEDED = ("fastapi", "jinja2", "prometheus_client", "rich", "segno", "sqlalchemy", "uvicorn")
"""Modules of the extra `server`, which has no module of its own."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("--keep", is_flag=True, help="Keep server and clients running, to use the console.")
@click.option("--fresh", is_flag=True, help="Begin with a new server; earlier runs are deleted.")
@click.option("--model", type=FILE, help="Begin with this model, not that of the training code.")
@json_option
def up(folder: Path, *, keep: bool, fresh: bool, model: Path | None) -> None:
    """Train in a folder of `fedloom new`: a server and its clients on this machine.

    Each file in data/ is a client: a process of its own, enrolled by a token, with a certificate.
    All state is in FOLDER/.fedloom. A run that was interrupted continues, unless the training code,
    run.toml or the initial model has changed; otherwise a new run begins. Default: the current
    folder.

    \b
    Examples:
      fedloom up machines
      fedloom up --keep
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise UsageError(
            f"`fedloom up` runs a server, which needs an extra that is not installed ({missing[0]} "
            "is missing): pip install 'fedloom[server]'"
        )
    from rich.console import Console  # noqa: PLC0415 - only now it is known to be there

    from fedloom.simulation.project import up as project  # noqa: PLC0415
    from fedloom.simulation.project.local_project import read_project  # noqa: PLC0415

    found = read_project(folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes end with this one
    console = Console(quiet=output.wants_json(), highlight=False)
    try:
        result = project.up(found, console, initial=model, fresh=fresh, keep=keep)
    except KeyboardInterrupt:
        click.echo("Interrupted. `fedloom up` continues the run.", err=True)
        raise
    if output.wants_json():
        output.emit(result, lambda: None)
