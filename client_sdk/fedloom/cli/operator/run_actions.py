"""Actions on a run or its open round, as commands of `fedloom run` and `fedloom round`.

Invariant: an action that was confirmed for round 7 applies to round 7 or fails. The request names
the round that was open before the confirmation.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import Duration, F, server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import run_and_number, run_or_only
from fedloom.cli.operator.confirm import act, action_options, reason_option, show_done
from fedloom.protocol.errors import UsageError

Body = dict[str, Any]
"""Arguments of an action."""


def _run_options(function: F) -> F:
    for option in (
        server_options,
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


def _on_run(
    *, round_option: bool = False, default_open: bool = True
) -> Callable[[Callable[..., Body]], Callable[..., None]]:
    """Make a command's callback of a function that has the name of an action and returns its body.

    Args:
        round_option: add `--round`.
        default_open: without `--round`, name the open round in the request.
    """

    def decorate(function: Callable[..., Body]) -> Callable[..., None]:
        @wraps(function)
        def callback(
            run: str | None,
            request: str | None,
            directory: Path,
            number: int | None = None,
            **own: Any,
        ) -> None:
            body, control = function(**own), Control(directory)
            run = run_or_only(control, run)
            if round_option and default_open and number is None:
                live = control.get("runs", run)["live"]
                number = live["round"]["number"] if live and live["round"] else None
            named = {} if number is None else {"round": number}
            _act(control, run, function.__name__, body | named, request)

        return _run_options(_round_option(callback) if round_option else callback)

    return decorate


_round_option = click.option(
    "--round",
    "number",
    type=click.IntRange(1),
    help="Act only if this is the open round. Default: the round that is open now.",
)


def _act(control: Control, run: str, action: str, body: Body, request: str | None) -> None:
    if request is not None:
        body = {**body, "request": request}
    after = act(control, "runs", run, action, body=body)
    reason = f" ({after['reason']})" if after["reason"] else ""
    show_done(after, f"Run {after['id']} is {after['state']}{reason}.")


# ---- a run ---------------------------------------------------------------------------------------


@click.command()
@_on_run()
def pause() -> Body:
    """Pause a run: the deadline of its open round is paused, and no other round opens.

    Like all actions, it uses the only active run by default, and asks for confirmation.

    \b
    Examples:
      fedloom run pause digits
      fedloom run pause --yes --json
    """
    return {}


@click.command()
@_on_run()
def resume() -> Body:
    """Resume a paused run.

    \b
    Example:
      fedloom run resume digits
    """
    return {}


@click.command()
@_on_run()
def stop() -> Body:
    """End a run permanently. Its open round is dropped; its last model is kept.

    \b
    Example:
      fedloom run stop digits
    """
    return {}


@click.command()
@click.option("--updates", type=click.IntRange(1), help="Updates at which a round closes.")
@click.option("--quorum", type=click.IntRange(1), help="Minimum updates at the deadline.")
@_on_run()
def goal(updates: int | None, quorum: int | None) -> Body:
    """Change the goal of the open round and later ones.

    \b
    Example:
      fedloom run goal digits --updates 20 --quorum 10
    """
    if updates is None and quorum is None:
        raise UsageError("Expected --updates, --quorum or both, got neither.")
    return {"goal": updates, "quorum": quorum}


@click.command()
@click.argument("run", required=False)
@click.option("--priority", type=click.IntRange(-1000, 1000), help="Of a new run: 0.")
@click.option("--share", type=click.FloatRange(0.001, 1000.0), help="Of a new run: 1.")
@action_options
@server_options
def priority(run: str | None, priority: int | None, share: float | None, directory: Path) -> None:
    """Change how early a run gets idle clients, or a place if it is queued.

    Runs with a higher priority come first. Among runs of one priority that wait for the same
    clients, one with share 2 gets twice as many tasks as one with share 1. Tasks under way are not
    interrupted.

    \b
    Examples:
      fedloom run priority digits --priority 10
      fedloom run priority digits --share 2
    """
    if priority is None and share is None:
        raise UsageError("Expected --priority, --share or both, got neither.")
    control = Control(directory)
    body = {"priority": priority, "share": share}
    _act(control, run_or_only(control, run), "priority", body, None)


@click.command()
@click.argument("words", metavar="[RUN] NUMBER", nargs=-1, required=True)
@action_options
@server_options
def quorum(words: tuple[str, ...], directory: Path) -> None:
    """Change the quorum at the deadline, for the open round and later ones.

    \b
    Example:
      fedloom run quorum digits 10
    """
    run, number = run_and_number(words)
    if number is None:
        raise UsageError("Expected the quorum, a number of updates: `fedloom run quorum RUN 10`.")
    control = Control(directory)
    _act(control, run_or_only(control, run), "goal", {"quorum": number}, None)


# ---- its open round ------------------------------------------------------------------------------


@click.command()
@_on_run(round_option=True)
def close() -> Body:
    """Close the open round now. It needs at least one update, but not its quorum.

    \b
    Examples:
      fedloom round close digits
      fedloom run close digits --round 7 --yes
    """
    return {}


@click.command()
@click.option(
    "--by", "seconds", type=Duration(), required=True, metavar="TIME", help="Like 90s, 15m or 2h."
)
@_on_run(round_option=True)
def extend(seconds: float) -> Body:
    """Give the open round more time.

    \b
    Examples:
      fedloom round extend digits --by 10m
      fedloom run extend --by 2h --yes
    """
    return {"seconds": seconds}


@click.command()
@reason_option
@_on_run(round_option=True)
def abort(reason: str) -> Body:
    """Drop the open round with its updates; the run continues with another one.

    \b
    Examples:
      fedloom round abort digits --reason "a shard was mislabelled"
      fedloom run abort digits --round 7
    """
    return {"reason": reason}


@click.command()
@reason_option
@_on_run(round_option=True, default_open=False)
def retry(reason: str) -> Body:
    """Open a round again now, from the same model.

    For a paused run without an open round. An open round is dropped, with its updates, only if
    --round names it.

    \b
    Examples:
      fedloom round retry digits
      fedloom run retry digits --yes
      fedloom round retry digits --round 7 --reason "two clients came back"
    """
    return {"reason": reason}


RUN_COMMANDS = (pause, resume, stop, goal, priority, quorum)
ROUND_COMMANDS = (close, extend, abort, retry)


def check_run(control: Control, spec: Mapping[str, Any], model: str | None) -> None:
    """Print the check of a run; exits with 1 if a round cannot reach its goal.

    Args:
        control: the server's API.
        spec: settings of the run.
        model: a safetensors file, which is not uploaded, or a digest; None for neither.
    """
    body: dict[str, Any] = {"spec": spec}
    if model is not None and Path(model).is_file():
        from fedloom.protocol.manifest import read_manifest  # noqa: PLC0415 - it imports numpy

        specs = read_manifest(Path(model)).specs
        body["tensors"] = {name: list(spec.shape) for name, spec in specs.items()}
    elif model is not None:
        body["model"] = model
    found = control.post("runs", "check", body=body)
    output.emit(found, lambda: _show(found))
    if not found["is_enough"]:
        click.get_current_context().exit(1)


def _show(found: Mapping[str, Any]) -> None:
    click.echo(found["summary"])
    for finding in (*found["obstacles"], *found["remarks"]):
        more = ", …" if finding["count"] > len(finding["clients"]) else ""
        click.echo(f"  {finding['text']}: {', '.join(finding['clients'])}{more}")
