"""`fedloom console`: a one-time login link for the web console."""

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
    """Print a one-time login link for the console, valid for two minutes.

    For users who may use the server's socket; others log in with name and password.

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
            f"{made['url']}\n\nIt logs you in once as {scope}, "
            f"until {output.moment(made['expires_at'])}."
        ),
    )
