"""`fedloom console`: into the web console, with one click."""

from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import directory_option, json_option, scope_option
from fedloom.cli.connection.api_client import Control


@click.command()
@scope_option(default="admin")
@click.option("--open", "open_it", is_flag=True, help="Open it in the browser of this machine.")
@directory_option
@json_option
def console(scope: str, open_it: bool, directory: Path) -> None:
    """Print a link that logs you in to the console, once, within two minutes.

    Whoever may use the server's socket may do this; others log in by name and password.

    \b
    Examples:
      fedloom console
      fedloom console --scope viewer --open
    """
    made = Control(directory).post("login-links", body={"scope": scope})
    if open_it:
        click.launch(made["url"])
    output.emit(
        made,
        lambda: click.echo(
            f"{made['url']}\n\nIt logs you in as {scope}, once, "
            f"until {output.moment(made['expires_at'])}."
        ),
    )
