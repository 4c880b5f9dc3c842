"""`fedloom console`: a one-time login link for the web console."""

from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import scope_option, server_options
from fedloom.cli.connection.api_client import Control


@click.command()
@scope_option(default="admin")
@click.option("--open", "open_it", is_flag=True, help="Open it in this machine's browser.")
@server_options
def console(scope: str, open_it: bool, directory: Path) -> None:
    """Print a one-time login link for the console, valid for two minutes.

    Only users with access to the server's socket can create one; others log in with a password.

    \b
    Examples:
      fedloom console
      fedloom console --scope viewer --open
    """
    made = Control(directory).post("login-links", body={"scope": scope})
    if open_it:
        click.launch(made["url"])
    output.emit_text(
        made,
        f"{made['url']}\n\nThe link logs you in once as {scope}. It expires at "
        f"{output.moment(made['expires_at'])}.",
    )
