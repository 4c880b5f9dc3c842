"""Commands of `fedloom client` for operators: list, inspect, exclude, revoke and label clients."""

from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import F, server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.client_view import listing, show_detail
from fedloom.cli.operator.confirm import act, action_options, reason_option, show_done
from fedloom.cli.operator.watch import present, watch_option
from fedloom.protocol.errors import UsageError

STATES = ("online", "offline", "working", "idle", "quarantined", "drained", "revoked")


def _client_action(function: F) -> F:
    """The argument and the options of a command that acts on a client."""
    for option in (server_options, action_options, click.argument("name")):
        function = option(function)
    return function


@click.command("list")
@click.argument("text", required=False, default="")
@click.option("--state", type=click.Choice(STATES), help="Only clients in this state.")
@click.option("--label", metavar="NAME[=VALUE]", default="", help="Only clients with this label.")
@watch_option
@server_options
def list_clients(text: str, state: str | None, label: str, *, watch: bool, directory: Path) -> None:
    """List enrolled clients: presence, task, and certificate expiry.

    TEXT is part of a name, a note or a label.

    \b
    Examples:
      fedloom client list
      fedloom client list ward --state online --label site=north
    """
    wanted = {"q": text, "label": label} | ({"state": state} if state else {})
    control, empty = Control(directory), "No client matches."
    if not (text or state or label):
        empty = "No clients yet. Invite one with `fedloom token create`."
    present(
        control,
        lambda: control.get_all("clients", key="clients", page="after", **wanted),
        lambda found: listing(found, empty),
        ("clients", "round"),
        watching=watch,
    )


@click.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 500), default=15, show_default=True)
@server_options
def show(name: str, limit: int, directory: Path) -> None:
    """Show a client and its latest rounds.

    \b
    Example:
      fedloom client show ward-3
    """
    control = Control(directory)
    found = control.get("clients", name)
    parts = control.get("clients", name, "parts", limit=limit)["parts"]
    output.emit({**found, "parts": parts}, lambda: show_detail(found, parts))


def _hold(name: str, action: str, reason: str, directory: Path) -> None:
    show_done(act(Control(directory), "clients", name, action, body={"reason": reason}))


@click.command()
@reason_option
@_client_action
def quarantine(name: str, reason: str, directory: Path) -> None:
    """Stop selecting a client and refuse its updates, until it is released.

    \b
    Example:
      fedloom client quarantine ward-3 --reason "its labels look wrong"
    """
    _hold(name, "quarantine", reason, directory)


@click.command()
@reason_option
@_client_action
def drain(name: str, reason: str, directory: Path) -> None:
    """Let a client finish its task, then stop selecting it, until it is released.

    \b
    Example:
      fedloom client drain ward-3 --reason "maintenance at noon"
    """
    _hold(name, "drain", reason, directory)


@click.command()
@_client_action
def release(name: str, directory: Path) -> None:
    """Select a client again after quarantine or drain.

    \b
    Example:
      fedloom client release ward-3
    """
    _hold(name, "release", "", directory)


@click.command()
@_client_action
def revoke(name: str, directory: Path) -> None:
    """Revoke a client and its certificates, and close its connection.

    To admit it again, give it a new token.

    \b
    Example:
      fedloom client revoke ward-3
    """
    show_done(act(Control(directory), "clients", name, "revoke"), f"{name} is revoked.")


@click.command()
@click.argument("name")
@click.argument("labels", metavar="LABEL=VALUE|LABEL-...", nargs=-1, required=True)
@server_options
def label(name: str, labels: tuple[str, ...], directory: Path) -> None:
    """Set or remove labels of a client: `site-` removes `site`.

    Labels from the device's client.toml are kept.

    \b
    Examples:
      fedloom client label ward-3 site=north floor=2
      fedloom client label ward-3 floor-
    """
    wanted = dict(_label(text) for text in labels)
    done = Control(directory).post("clients", name, "labels", body={"labels": wanted})
    shown = "  ".join(f"{k}={v}" for k, v in sorted(done["labels"].items())) or "no labels"
    output.emit_text(done, f"{name}: {shown}")


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals and key:
        return key, value
    if text.endswith("-") and len(text) > 1:
        return text[:-1], None
    raise UsageError(f"Expected LABEL=VALUE to set a label or LABEL- to remove it, got {text!r}.")


@click.command()
@click.argument("name")
@click.argument("text")
@server_options
def note(name: str, text: str, directory: Path) -> None:
    """Set the note about a client; an empty text removes it.

    \b
    Example:
      fedloom client note ward-3 "new camera since March"
    """
    done = Control(directory).post("clients", name, "note", body={"note": text})
    output.emit_text(done, f"{name}: {done['note'] or 'no note'}")
