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

    The server is notified and revokes this device's certificate; if it cannot be reached, the
    device is wiped all the same. Updates that were sent stay part of the models. Refuses while the
    agent runs: stop it first.

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
        with _no_agent(settings.state_dir, LOCK):  # before the question
            pass
        _confirm(settings.server, settings.state_dir, keep_log)
    with _no_agent(settings.state_dir):
        notice = asyncio.run(departure.notify_server(settings))
        rest = departure.wipe(settings.state_dir, keep_log=keep_log)
        if keep_log:
            told = "which was notified" if notice.told else "which could not be notified"
            Journal(settings.state_dir).note("left", f"Left {settings.server}, {told}.")
    aside = departure.put_aside(config)
    document = {
        "left": True,
        "told": notice.told,
        "why_not": notice.why,
        "settings": str(aside),
        "not_ours": [str(path) for path in rest],
    }
    emit(document, lambda: _show(document, settings.server))


def _no_agent(state_dir: Path, unless_missing: str = "") -> AbstractContextManager[None]:
    """Lock out the agent meanwhile: it would use and rewrite what is being wiped.

    Args:
        state_dir: of the client; absent where an earlier, interrupted leave has wiped it.
        unless_missing: a file without which no agent has ever run, so that it is not created.

    Raises:
        UsageError: it runs.
    """
    from fedloom.client.state.process_lock import only_agent  # noqa: PLC0415 - help needs none of it

    if not (state_dir / unless_missing).exists():
        return nullcontext()
    return only_agent(
        state_dir,
        "stop it first (Ctrl-C in its terminal, systemctl stop fedloom-client where a service runs "
        "it, or kill with that number), then leave again. Nothing was changed.",
    )


def _confirm(server: str, state_dir: Path, keep_log: bool) -> None:
    """State what will happen, and ask."""
    kept = "" if keep_log else ", and the journal"
    words = (
        f"This device leaves the federation at {server} for good: its key, its certificate, "
        f"received models and unsent updates in {state_dir}{kept} are removed. "
        "To come back it needs a new token."
    )
    if wants_json():
        raise click.UsageError("--json needs --yes: it cannot ask.")
    click.echo(words)
    click.confirm("Leave?", abort=True)


def _show(document: dict[str, object], server: str) -> None:
    if document["told"]:
        click.echo(f"Left {server}, which was notified. Its files on this device are deleted.")
    else:
        click.echo(
            f"Left {server}, which could not be notified ({document['why_not']}). Its files on "
            "this device are deleted; its certificate expires by itself. To have it revoked now, "
            "ask the operator."
        )
    click.echo(f"Its settings are kept in {document['settings']}.")
    rest = document["not_ours"]
    if isinstance(rest, list) and rest:
        click.echo(f"Not deleted, as fedloom did not create it: {', '.join(rest)}.")
