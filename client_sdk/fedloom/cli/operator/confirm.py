"""Actions: what one will do is said before it is done, and asked about where somebody can answer.

A command that acts has `action_options` and hands its request to `act`. On a terminal the server's
own words for the consequence (`?preview=true`) come first, and then the question; elsewhere nobody
can answer, so `--yes` has to say it. What changes nothing is not asked about.
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
    help="Do not ask. Needed where there is no terminal to ask on.",
)


def action_options(function: F) -> F:
    """`--yes` and `--preview`, which `act` heeds."""
    function = yes_option(function)
    return click.option(
        "--preview",
        is_flag=True,
        expose_value=False,
        callback=_remembered(PREVIEW),
        help="Say what it would do, and do nothing.",
    )(function)


def act(control: Control, *path: str, body: Any = None) -> dict[str, Any]:
    """Ask, if need be, and then do it.

    Args:
        control: the server.
        path: of the action, under /v1.
        body: its arguments.

    Returns:
        What the server answered, with `consequence` and `changed`.

    Raises:
        UsageError: nobody can be asked, and `--yes` was not given.
        ClickException: the answer was no.
        FedloomError: the server says no.
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
    """Go on only if somebody agrees, or `--yes` did.

    Raises:
        UsageError: nobody can be asked.
        ClickException: the answer was no.
    """
    if click.get_current_context().meta.get(YES):
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"Expected --yes, as nobody can be asked here. It would do: {consequence}")
    click.echo(consequence, err=True)
    if not click.confirm("Go on?", err=True):
        raise click.ClickException("Nothing was done.")
    click.get_current_context().meta[ASKED] = True


def show_done(done: dict[str, Any], after: str = "") -> None:
    """Print what an action did: its consequence, unless that was read, and how things stand."""
    meta = click.get_current_context().meta
    lines = [] if meta.get(ASKED) else [done["consequence"]]
    if not meta.get(PREVIEW):
        lines += [after or "Done."] if meta.get(ASKED) else [after] if after else []
    output.emit(done, lambda: click.echo("\n".join(lines)))
