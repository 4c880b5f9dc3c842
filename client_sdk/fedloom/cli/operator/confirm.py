"""Confirmation of actions: prints the consequence and asks before acting.

A command that acts has `action_options` and passes its request to `act`. On a terminal it prints
the server's description of the consequence (`?preview=true`) and asks; elsewhere it needs `--yes`.
It does not ask if the action changes nothing.
"""

import sys
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import F
from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UsageError

YES = "fedloom.yes"
PREVIEW = "fedloom.preview"
ASKED = "fedloom.asked"
_NOTHING = "nothing changes."


def _remembered(key: str) -> Any:
    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[key] = value

    return remember


yes_option = click.option(
    "--yes",
    "-y",
    is_flag=True,
    expose_value=False,
    callback=_remembered(YES),
    help="Do not ask. Required without a terminal.",
)


reason_option = click.option("--reason", default="", help="For the audit trail.")


def action_options(function: F) -> F:
    """The options `--yes` and `--preview`, which `act` reads."""
    function = yes_option(function)
    return click.option(
        "--preview",
        is_flag=True,
        expose_value=False,
        callback=_remembered(PREVIEW),
        help="Print what would be done; change nothing.",
    )(function)


def act(control: Control, *path: str, body: Any = None) -> dict[str, Any]:
    """Ask for confirmation if necessary, then act.

    Args:
        control: the server.
        path: of the action, under /v1.
        body: its arguments.

    Returns:
        The server's response, with `consequence` and `changed`.

    Raises:
        UsageError: there is no terminal, and `--yes` was not given.
        ClickException: the operator did not confirm.
        FedloomError: the server refuses.
    """
    meta = click.get_current_context().meta
    if meta.get(YES) and not meta.get(PREVIEW):
        return dict(control.post(*path, body=body))
    seen: dict[str, Any] = control.post(*path, body=body, preview="true")
    if meta.get(PREVIEW) or seen["consequence"].endswith(_NOTHING):
        return seen
    confirm(seen["consequence"])
    return dict(control.post(*path, body=body))


def confirm(consequence: str) -> None:
    """Ask for confirmation, unless `--yes` was given.

    Raises:
        UsageError: there is no terminal.
        ClickException: the operator did not confirm.
    """
    if click.get_current_context().meta.get(YES):
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"Without a terminal this needs --yes. Consequence: {consequence}")
    click.echo(consequence, err=True)
    if not click.confirm("Continue?", err=True):
        raise click.ClickException("Nothing was done.")
    click.get_current_context().meta[ASKED] = True


def show_done(done: dict[str, Any], after: str = "") -> None:
    """Print an action's consequence, unless already shown, and the new state."""
    meta = click.get_current_context().meta
    lines = [] if meta.get(ASKED) else [done["consequence"]]
    if not meta.get(PREVIEW):
        lines += [after or "Done."] if meta.get(ASKED) else [after] if after else []
    output.emit_text(done, "\n".join(lines))
