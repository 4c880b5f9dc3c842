"""`fedloom round`: shows rounds, and acts on the open one."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import run_and_number, run_or_newest
from fedloom.cli.operator.run_actions import ROUND_COMMANDS
from fedloom.cli.operator.watch import present, watch_option
from fedloom.protocol.errors import UsageError


@click.group("round", cls=LazyGroup)
def rounds() -> None:
    """Show rounds and each client's part; close, extend, abort or retry the open one.

    RUN is a run's id or a unique prefix of it.
    """


@rounds.command("list")
@click.argument("run", required=False)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True)
@click.option("--before", type=click.IntRange(2), help="Rounds of lower numbers: the next page.")
@watch_option
@server_options
def list_rounds(
    run: str | None, limit: int, before: int | None, *, watch: bool, directory: Path
) -> None:
    """List a run's rounds, newest first, with counts of their clients' outcomes.

    \b
    Examples:
      fedloom round list digits
      fedloom round list digits --before 80 --limit 50
    """
    control = Control(directory)
    path = ("runs", run_or_newest(control, run), "rounds")
    present(
        control,
        lambda: control.get(*path, limit=limit, before=before or 0),
        _listing,
        ("run", "round"),
        watching=watch,
    )


def _listing(found: dict[str, Any]) -> Any:
    from fedloom.cli.operator.round_view import listing  # noqa: PLC0415 - it imports rich

    return listing(found["rounds"], found["more"])


@rounds.command()
@click.argument("words", metavar="[RUN] [NUMBER]", nargs=-1)
@click.option("--session", type=click.IntRange(0), help="One masking session with its members.")
@watch_option
@server_options
def show(words: tuple[str, ...], session: int | None, *, watch: bool, directory: Path) -> None:
    """Show a round and each of its clients. Default: the newest run's newest round.

    A masked round has masking sessions: for each its state, size and threshold, and how many
    members dealt shares, sent their masked update, signed the survivors and revealed. --session
    shows who sent which message, and when; nobody sees what was sent.

    A session's shape lists its events, as in Bonawitz et al. 2019, Table 1: - checked in,
    v downloaded, [ training started, ] completed, + upload started, ^ accepted, # rejected,
    * error, ! interrupted.

    \b
    Examples:
      fedloom round show
      fedloom round show digits 7 --json | jq '.members[] | {client, phase, norm}'
      fedloom round show digits 7 --session 0
    """
    run, number = run_and_number(words)
    control = Control(directory)
    run = run_or_newest(control, run)
    path = ("runs", run, "rounds", str(number or _latest(control, run)))
    if session is not None:
        its = (*path, "sessions", str(session))
        present(control, lambda: control.get(*its), _session, ("run", "round"), watching=watch)
        return
    present(
        control,
        lambda: control.get_all(*path, key="members", page="after"),
        _detail,
        ("run", "round"),
        watching=watch,
    )


def _detail(found: dict[str, Any]) -> Any:
    from fedloom.cli.operator.round_view import detail  # noqa: PLC0415 - as above

    return detail(found)


def _session(found: dict[str, Any]) -> Any:
    from fedloom.cli.common.masking_sessions import detail  # noqa: PLC0415 - as above

    return detail(found)


def _latest(control: Control, run: str) -> int:
    rounds_: list[dict[str, Any]] = control.get("runs", run, "rounds", limit=1)["rounds"]
    if not rounds_:
        raise UsageError(f"{run} has no rounds yet. See `fedloom run status`.")
    return int(rounds_[0]["number"])


for _command in ROUND_COMMANDS:
    rounds.add_command(_command)
