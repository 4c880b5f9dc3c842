"""Commands of `fedloom client` for operators: list, inspect, exclude, revoke and label clients."""

from collections.abc import Sequence
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import F, server_options, study_filter_option
from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.client_view import listing, print_shares, show_detail
from fedloom.cli.operator.confirm import ASKED, act, action_options, reason_option, show_done
from fedloom.cli.operator.watch import present, watch_option
from fedloom.protocol.errors import UsageError

STATES = (
    "online",
    "offline",
    "due",
    "working",
    "idle",
    "failing",
    "cooling",
    "quarantined",
    "drained",
    "revoked",
)


@click.command("shares")
@click.argument("label", metavar="LABEL")
@click.option("--run", metavar="RUN", default="", help="Rounds of this run alone.")
@server_options
def shares(label: str, run: str, directory: Path) -> None:
    """Show how often rounds asked clients, by the value of a label.

    A share of what was asked that is far from the share of clients shows whom rounds reach less.

    \b
    Example:
      fedloom client shares region --run digits
    """
    found = Control(directory).get("client-shares", label=label, run=run)
    output.emit(found, lambda: print_shares(found))


def _clients_action(function: F) -> F:
    """The argument and the options of a command that acts on clients."""
    names = click.argument("names", metavar="NAME...", nargs=-1, required=True)
    for option in (server_options, action_options, names):
        function = option(function)
    return function


@click.command("list")
@click.argument("text", required=False, default="")
@click.option("--state", type=click.Choice(STATES), help="Only clients in this state.")
@click.option("--label", metavar="NAME[=VALUE]", default="", help="Only clients with this label.")
@study_filter_option
@watch_option
@server_options
def list_clients(
    text: str, state: str | None, label: str, study: str, *, watch: bool, directory: Path
) -> None:
    """List enrolled clients: presence, task, and certificate expiry.

    TEXT is part of a name, a note or a label.

    \b
    Examples:
      fedloom client list
      fedloom client list ward --state online --label site=north
    """
    wanted = {"q": text, "label": label, "study": study} | ({"state": state} if state else {})
    control, empty = Control(directory), "No client matches."
    if not (text or state or label or study):
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


def _act_on(names: Sequence[str], action: str, directory: Path, reason: str = "") -> None:
    """Act on one client, or on several with one confirmation; exit with 1 if some failed."""
    control, context = Control(directory), click.get_current_context()
    if len(names) == 1:
        body = None if action == "revoke" else {"reason": reason}
        done = act(control, "clients", names[0], action, body=body)
        show_done(done, f"{names[0]} is revoked." if action == "revoke" else "")
        return
    wish = {"action": action, "clients": names, "reason": reason}
    done = act(control, "client-groups", body=wish)
    show_done(done, done["consequence"] if context.meta.get(ASKED) else "")
    if done["failed"]:
        context.exit(1)


@click.command()
@reason_option
@_clients_action
def quarantine(names: tuple[str, ...], reason: str, directory: Path) -> None:
    """Stop selecting clients and refuse their updates, until they are released.

    \b
    Examples:
      fedloom client quarantine ward-3 --reason "its labels look wrong"
      fedloom client quarantine ward-3 ward-7 --preview
    """
    _act_on(names, "quarantine", directory, reason)


@click.command()
@reason_option
@_clients_action
def drain(names: tuple[str, ...], reason: str, directory: Path) -> None:
    """Let clients finish their tasks, then stop selecting them, until they are released.

    \b
    Example:
      fedloom client drain ward-3 --reason "maintenance at noon"
    """
    _act_on(names, "drain", directory, reason)


@click.command()
@_clients_action
def release(names: tuple[str, ...], directory: Path) -> None:
    """Select clients again after quarantine or drain, or while they cool off.

    Their recent failures no longer count.

    \b
    Example:
      fedloom client release ward-3
    """
    _act_on(names, "release", directory)


@click.command()
@_clients_action
def revoke(names: tuple[str, ...], directory: Path) -> None:
    """Revoke clients and their certificates, and close their connections.

    To admit one again, give it a new token.

    \b
    Example:
      fedloom client revoke ward-3
    """
    _act_on(names, "revoke", directory)


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
@click.argument("study")
@server_options
def study(name: str, study: str, directory: Path) -> None:
    """Move a client to a study: only runs of that study draw it. An empty text: no study.

    \b
    Example:
      fedloom client study ward-3 cardio
    """
    done = Control(directory).post("clients", name, "study", body={"study": study})
    output.emit_text(done, done["consequence"])


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


@click.command()
@click.argument("name")
@click.argument("number", type=click.IntRange(1, 1 << 20))
@server_options
def devices(name: str, number: int, directory: Path) -> None:
    """Register a site for another number of devices, the most in one of its sums.

    A task of the site that is open keeps its places, but a larger sum is refused.

    \b
    Example:
      fedloom client devices north 80
    """
    done = Control(directory).post("clients", name, "devices", body={"devices": number})
    output.emit_text(done, done["consequence"])
