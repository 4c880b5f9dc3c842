"""Actions on a run or its open round, as commands of `fedloom run` and `fedloom round`.

Invariant: an action that was confirmed for round 7 applies to round 7 or fails. The request names
the round that was open when the question was asked.
"""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common.options import Duration, F, directory_option, json_option
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import only_active, run_and_number
from fedloom.cli.operator.confirm import act, action_options, show_done
from fedloom.protocol.errors import UsageError


def _steers(function: F) -> F:
    """Options of every command here."""
    for option in (
        json_option,
        directory_option,
        action_options,
        click.option(
            "--request",
            metavar="TEXT",
            help="An idempotency key of 8 or more characters: repeating the command with it within "
            "a day does the action once.",
        ),
        click.argument("run", required=False),
    ):
        function = option(function)
    return function


def _steers_round(function: F) -> F:
    return _steers(
        click.option(
            "--round",
            "number",
            type=click.IntRange(1),
            help="Act only if this is the open round. Default: the round that is open now.",
        )(function)
    )


def _steer(
    directory: Path, run: str | None, action: str, body: dict[str, Any], *, request: str | None
) -> None:
    control = Control(directory)
    run = run or only_active(control.get("runs")["runs"])
    if request is not None:
        body = {**body, "request": request}
    _do(control, run, action, body)


def _steer_round(
    directory: Path,
    run: str | None,
    action: str,
    body: dict[str, Any],
    *,
    request: str | None,
    number: int | None,
) -> None:
    control = Control(directory)
    run = run or only_active(control.get("runs")["runs"])
    live = control.get("runs", run)["live"]
    if number is None and live is not None and live["round"] is not None:
        number = live["round"]["number"]
    named = {"round": number, "request": request}
    _do(control, run, action, body | {k: v for k, v in named.items() if v is not None})


def _do(control: Control, run: str, action: str, body: dict[str, Any]) -> None:
    after = act(control, "runs", run, action, body=body)
    reason = f" ({after['reason']})" if after["reason"] else ""
    show_done(after, f"Run {after['id']} is {after['state']}{reason}.")


# ---- a run ---------------------------------------------------------------------------------------


@click.command()
@_steers
def pause(run: str | None, request: str | None, directory: Path) -> None:
    """Pause a run: the deadline of its open round is paused, and no other round opens.

    Like all actions, it uses the only active run if none is named, and asks for confirmation.

    \b
    Examples:
      fedloom run pause digits
      fedloom run pause --yes --json
    """
    _steer(directory, run, "pause", {}, request=request)


@click.command()
@_steers
def resume(run: str | None, request: str | None, directory: Path) -> None:
    """Resume a paused run.

    \b
    Example:
      fedloom run resume digits
    """
    _steer(directory, run, "resume", {}, request=request)


@click.command()
@_steers
def stop(run: str | None, request: str | None, directory: Path) -> None:
    """End a run for good. Its open round is dropped; its last model is kept.

    \b
    Example:
      fedloom run stop digits
    """
    _steer(directory, run, "stop", {}, request=request)


@click.command()
@click.option("--updates", "number", type=click.IntRange(1), help="Updates that close a round.")
@click.option("--quorum", type=click.IntRange(1), help="Least updates at the deadline.")
@_steers
def goal(
    run: str | None, number: int | None, quorum: int | None, request: str | None, directory: Path
) -> None:
    """Change the goal of the open round and later ones.

    \b
    Example:
      fedloom run goal digits --updates 20 --quorum 10
    """
    if number is None and quorum is None:
        raise UsageError("Expected --updates, --quorum or both, got neither.")
    _steer(directory, run, "goal", {"goal": number, "quorum": quorum}, request=request)


@click.command()
@click.argument("words", metavar="[RUN] NUMBER", nargs=-1, required=True)
@action_options
@directory_option
@json_option
def quorum(words: tuple[str, ...], directory: Path) -> None:
    """Change the quorum at the deadline, for the open round and later ones.

    \b
    Example:
      fedloom run quorum digits 10
    """
    run, number = run_and_number(words)
    if number is None:
        raise UsageError("Expected a number of updates, got none.")
    _steer(directory, run, "goal", {"quorum": number}, request=None)


# ---- its open round ------------------------------------------------------------------------------


@click.command()
@_steers_round
def close(run: str | None, number: int | None, request: str | None, directory: Path) -> None:
    """Close the open round now with its updates: at least one, whatever the quorum.

    \b
    Examples:
      fedloom round close digits
      fedloom run close digits --round 7 --yes
    """
    _steer_round(directory, run, "close", {}, request=request, number=number)


@click.command()
@click.option(
    "--by", "seconds", type=Duration(), required=True, metavar="TIME", help="Like 90s, 15m or 2h."
)
@_steers_round
def extend(
    run: str | None, seconds: float, number: int | None, request: str | None, directory: Path
) -> None:
    """Give the open round more time.

    \b
    Examples:
      fedloom round extend digits --by 10m
      fedloom run extend --by 2h --yes
    """
    _steer_round(directory, run, "extend", {"seconds": seconds}, request=request, number=number)


@click.command()
@click.option("--reason", default="", help="For the record.")
@_steers_round
def abort(
    run: str | None, reason: str, number: int | None, request: str | None, directory: Path
) -> None:
    """Drop the open round with its updates; the run continues with another one.

    \b
    Examples:
      fedloom round abort digits --reason "a shard was mislabelled"
      fedloom run abort digits --round 7
    """
    _steer_round(directory, run, "abort", {"reason": reason}, request=request, number=number)


@click.command()
@click.option("--reason", default="", help="For the record.")
@_steers_round
def retry(
    run: str | None, reason: str, number: int | None, request: str | None, directory: Path
) -> None:
    """Open a round again from the same model, at once.

    For a run that paused without a round; an open round is dropped with its updates only if it is
    named by --round.

    \b
    Examples:
      fedloom round retry digits
      fedloom run retry digits --yes
      fedloom round retry digits --round 7 --reason "two clients came back"
    """
    if number is not None:
        _steer_round(directory, run, "retry", {"reason": reason}, request=request, number=number)
    else:
        _steer(directory, run, "retry", {"reason": reason}, request=request)


RUN_COMMANDS = (pause, resume, stop, goal, quorum)
ROUND_COMMANDS = (close, extend, abort, retry)
