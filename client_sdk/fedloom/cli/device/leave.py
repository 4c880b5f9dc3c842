"""`fedloom client leave`: leaves the federation and wipes the device's state."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from fedloom.cli.common.options import config_option, json_option
from fedloom.cli.common.output import emit, wants_json


@click.command()
@config_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-log", is_flag=True, help="Keep the journal of what was sent.")
@json_option
def leave(config: Path, yes: bool, keep_log: bool) -> None:
    """Leave the federation and delete its files on this device.

    The server is notified and revokes this device's certificate. If it is unreachable, the files
    are deleted anyway. Updates that were sent stay part of the models. Stop the agent first.

    \b
    Examples:
      fedloom client leave
      fedloom client leave --yes --keep-log
    """
    from fedloom.client.config import load  # noqa: PLC0415
    from fedloom.client.identity import leave as departure  # noqa: PLC0415 - help needs none of it
    from fedloom.client.owner.journal import Journal  # noqa: PLC0415
    from fedloom.client.state.process_lock import FILE as LOCK  # noqa: PLC0415

    if not config.exists() and config.with_name(config.name + ".left").exists():
        emit({"left": True, "again": True}, lambda: click.echo("This device has already left."))
        return
    settings = load(config)
    if not yes:
        with _no_agent(settings.state_dir, LOCK):  # before the prompt
            pass
        _confirm(settings.server, settings.state_dir, keep_log)
    with _no_agent(settings.state_dir):
        notice = asyncio.run(departure.notify_server(settings))
        rest = departure.wipe(settings.state_dir, keep_log=keep_log)
        if keep_log:
            how = "which was notified" if notice.notified else "which could not be notified"
            Journal(settings.state_dir).note("left", f"Left {settings.server}, {how}.")
    aside = departure.put_aside(config)
    document = {
        "left": True,
        "told": notice.notified,
        "why_not": notice.why,
        "settings": str(aside),
        "not_ours": [str(path) for path in rest],
    }
    emit(document, lambda: _show(document, settings.server))


def _no_agent(state_dir: Path, unless_missing: str = "") -> AbstractContextManager[None]:
    """Keep an agent from starting: it would use and rewrite files that are being deleted.

    Args:
        state_dir: of the client; missing if an interrupted leave has already deleted it.
        unless_missing: a file that every agent creates; without it, nothing is locked.

    Raises:
        UsageError: an agent runs.
    """
    from fedloom.client.state.process_lock import only_agent  # noqa: PLC0415 - help needs none of it

    if not (state_dir / unless_missing).exists():
        return nullcontext()
    return only_agent(
        state_dir,
        "stop it first (Ctrl-C in its terminal, systemctl stop fedloom-client for a service, or "
        "kill with that pid), then leave again. Nothing was changed.",
    )


def _confirm(server: str, state_dir: Path, keep_log: bool) -> None:
    if wants_json():
        raise click.UsageError("--json needs --yes, because it cannot ask.")
    journal = "" if keep_log else ", and the journal"
    click.echo(
        f"This device leaves the federation at {server}. Its key, its certificate, received models "
        f"and unsent updates in {state_dir}{journal} are deleted. To return it needs a new token."
    )
    click.confirm("Leave?", abort=True)


def _show(document: dict[str, object], server: str) -> None:
    if document["told"]:
        click.echo(f"Left {server}, which was notified. Its files on this device are deleted.")
    else:
        click.echo(
            f"Left {server}, which could not be notified ({document['why_not']}). Its files on "
            "this device are deleted. Its certificate stays valid until it expires; ask the "
            "operator to revoke it."
        )
    click.echo(f"Its settings are kept in {document['settings']}.")
    rest = document["not_ours"]
    if isinstance(rest, list) and rest:
        click.echo(f"Not deleted, because fedloom did not create it: {', '.join(rest)}.")
