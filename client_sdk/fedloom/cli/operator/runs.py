"""`fedloom run`: submits training runs, watches and controls them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import json_option, server_options, study_filter_option
from fedloom.cli.connection.api_client import Control, NoServerError
from fedloom.cli.connection.default_run import run_or_newest
from fedloom.cli.operator.export.command import export
from fedloom.cli.operator.run_actions import ROUND_COMMANDS, RUN_COMMANDS, check_run
from fedloom.cli.operator.watch import present, watch_option
from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.settings import toml

NO_RUNS = "No runs yet. Submit one with `fedloom run submit`."
PROGRESS_BYTES = 32 << 20
"""Larger uploads show their progress."""


@click.group(cls=LazyGroup)
def run() -> None:
    """Submit training runs; watch and control them.

    RUN is a run's id or a unique prefix of it.
    """


@run.command()
@json_option
def template() -> None:
    """Print a run.toml with every setting, its default and its meaning.

    \b
    Example:
      fedloom run template > run.toml
    """
    text = resources.files("fedloom.cli").joinpath("run.toml").read_text("utf-8")
    output.emit({"template": text}, lambda: click.echo(text, nl=False))


@run.command()
@click.argument(
    "spec", metavar="[RUN.toml]", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option(
    "--model",
    metavar="FILE|DIGEST",
    help="Initial model: a safetensors file, or the digest of a model on the server.",
)
@click.option(
    "--evaluate",
    is_flag=True,
    help="Only evaluate the model, in one round; overrides the number of rounds.",
)
@click.option(
    "--flower-server",
    metavar="NAME",
    help="Run the ServerApp of this Flower app, of [flower_apps] in server.toml.",
)
@click.option("--watch", is_flag=True, help="Then watch the run until it ends.")
@click.option(
    "--check",
    is_flag=True,
    help="Start nothing; say which clients can take part, and what keeps others out. Exits with 1 "
    "if they are fewer than cohort.goal.",
)
@server_options
def submit(
    spec: Path | None,
    model: str | None,
    *,
    evaluate: bool,
    flower_server: str | None,
    watch: bool,
    check: bool,
    directory: Path,
) -> None:
    """Start a run from an initial model, or of a Flower ServerApp.

    First prints the privacy guarantee of a run with [privacy], and the rounding of one with
    sum_bits, as `fedloom run describe` does.

    \b
    Examples:
      fedloom run submit run.toml --model init.safetensors
      fedloom run submit run.toml --model 25eb5eeb --watch
      fedloom run submit run.toml --model 25eb5eeb --evaluate --watch
      fedloom run submit run.toml --model init.safetensors --check
      fedloom run submit --flower-server analytics --watch
    """
    values = _values(spec, evaluate=evaluate, flower_server=flower_server)
    if model is None and not values.get("flower"):
        raise click.UsageError(
            "Missing option --model FILE|DIGEST. `fedloom model init FILE.py:NAME --out "
            "init.safetensors` makes a first model."
        )
    control = Control(directory)
    described = _described(control, spec, values)  # before the model is uploaded
    claim, grid = described["privacy"], described["sums"]
    for text in described["notes"]:
        click.echo(f"Note: {text}", err=True)
    if check:
        check_run(control, values, model)
        return
    if claim is not None and not output.wants_json():
        _show_claim(claim)
    if grid is not None and not output.wants_json():
        _show_sums(grid)
    digest = "" if model is None else _digest_of(control, model)
    started = control.post("runs", body={"spec": values, "model": digest})
    if claim is not None and not output.wants_json():
        for text in control.get("runs", started["id"])["privacy"].get("advice", ()):
            click.echo(f"Advice: {text}", err=True)
    if watch:
        _watch(control, started["id"])
        return
    output.emit_text(
        started,
        f"Run {started['id']} is {started['state']}{_place_of(started)}.\n"
        f"Next:\n  fedloom run status {started['id']} --watch",
    )


def _described(control: Control, spec: Path | None, values: dict[str, Any]) -> Any:
    """The server's description of a run; what it refuses is in the file, if there is one."""
    try:
        return control.post("runs", "describe", body={"spec": values})
    except NoServerError:
        raise
    except UsageError as error:
        raise error if spec is None else UsageError(f"{spec}: {error}") from None


def _place_of(run: dict[str, Any]) -> str:
    place = run.get("place")
    return f": place {place} in the queue" if place else ""


def _values(spec: Path | None, *, evaluate: bool, flower_server: str | None) -> dict[str, Any]:
    """The settings of a run, from its file and the options that override it."""
    if spec is None and flower_server is None:
        raise click.UsageError("Missing argument RUN.toml.")
    values = {} if spec is None else _read(spec)
    if evaluate:
        values |= {"evaluate_only": True, "rounds": 1}
    if flower_server is not None:
        values.setdefault("name", flower_server)
        values["flower"] = {**values.get("flower", {}), "server_app": flower_server}
    return values


@run.command()
@click.argument("spec", metavar="RUN.toml", type=click.Path(path_type=Path, dir_okay=False))
@server_options
def describe(spec: Path, directory: Path) -> None:
    """Check a run's settings; show its privacy guarantee and the rounding of its sums.

    Nothing starts.

    \b
    Example:
      fedloom run describe run.toml
    """
    values = _read(spec)
    control = Control(directory)
    found = _described(control, spec, values)

    def show() -> None:
        for text in found["notes"]:
            click.echo(f"Note: {text}")
        _show_claim(found["privacy"])
        if not found["spec"]["privacy"]:
            _show_sums(found["sums"])

    output.emit(found, show)


def _show_sums(grid: dict[str, Any] | None) -> None:
    from fedloom.strategies.masking.sessions import sum_lines  # noqa: PLC0415 - it imports numpy

    if grid is None:
        click.echo("Sums: exact.")
        return
    _show("Sums", sum_lines(grid))


def _show_claim(claim: dict[str, Any] | None) -> None:
    from fedloom.strategies.privacy import claim_lines  # noqa: PLC0415 - few runs have a claim

    if claim is None:
        click.echo("No differential privacy: the run has no [privacy].")
        return
    _show("Privacy", claim_lines(claim))


def _show(title: str, lines: Sequence[str]) -> None:
    first, *rest = lines
    click.echo(f"{title}: {first}")
    for line in rest:
        click.echo(f"  {line}")


def _read(spec: Path) -> dict[str, Any]:
    return toml.read(spec, "a run's settings", missing="`fedloom run template` prints a template")


def _digest_of(control: Control, text: str) -> str:
    """The digest of a model on the server, to which a file is uploaded."""
    if Path(text).is_file():
        return _upload(control, Path(text))
    if len(text) < 4 or not set(text) <= set("0123456789abcdef"):
        raise UsageError(
            f"--model {text!r} is neither a file nor a digest. Make a first model by `fedloom "
            "model init FILE.py:NAME --out init.safetensors`, or take a digest of `fedloom model "
            "list`."
        )
    return text


def _upload(control: Control, path: Path) -> str:
    size_bytes = path.stat().st_size
    with path.open("rb") as file, _progress(file, size_bytes) as body:
        try:
            stored = control.upload("models", file=body, size_bytes=size_bytes)
        except (IntegrityError, UsageError) as error:  # the server does not know the file's name
            raise type(error)(str(error).replace("the body", str(path))) from error
    return str(stored["digest"])


def _progress(file: BinaryIO, size_bytes: int) -> AbstractContextManager[BinaryIO]:
    console = output.console(stderr=True)
    if size_bytes < PROGRESS_BYTES or output.wants_json() or not console.is_terminal:
        return nullcontext(file)
    from rich.progress import wrap_file  # noqa: PLC0415 - only on a terminal

    return wrap_file(file, size_bytes, description="Uploading", console=console, transient=True)


@run.command()
@click.argument("run", required=False)
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh until the run ends; exit with 1 if it failed. With --json, one line per change.",
)
@click.option("--all", "everything", is_flag=True, help="Show all rounds.")
@server_options
def status(run: str | None, watch: bool, everything: bool, directory: Path) -> None:
    """Show a run: progress, open round and metrics of its rounds. Default: the newest run.

    \b
    Examples:
      fedloom run status
      fedloom run status digits --watch
      fedloom run status --json | jq '.rounds[-1].evaluation.values'
    """
    control = Control(directory)
    run = run_or_newest(control, run)
    if watch:
        _watch(control, run)
        return
    found = control.get("runs", run)
    if everything:
        from fedloom.cli.operator.run_view import with_all_rounds  # noqa: PLC0415 - it imports rich

        found = with_all_rounds(control, found)

    def show() -> None:
        from fedloom.cli.operator.run_view import ROWS, render  # noqa: PLC0415 - as above

        output.show(render(found, rows=None if everything else ROWS))

    output.emit(found, show)


def _watch(control: Control, run: str) -> None:
    from fedloom.cli.operator.run_view import watch as follow  # noqa: PLC0415 - as above

    found = follow(control, run)
    if found["state"] == "failed":
        click.get_current_context().exit(1)


@run.command("list")
@study_filter_option
@watch_option
@server_options
def list_runs(study: str, *, watch: bool, directory: Path) -> None:
    """List all runs, oldest first.

    \b
    Examples:
      fedloom run list
      fedloom run list --study cardio
      fedloom run list --watch --json
    """
    control = Control(directory)
    topics = ("run", "round")
    empty = "No run matches." if study else NO_RUNS

    def show(found: dict[str, Any]) -> Any:
        from fedloom.cli.operator.run_view import listing  # noqa: PLC0415 - as above

        return listing(found["runs"], empty)

    present(control, lambda: control.get("runs", study=study), show, topics, watching=watch)


@run.command()
@click.argument("run", required=False)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@server_options
def refusals(run: str | None, limit: int, directory: Path) -> None:
    """List refused uploads of a run, newest first. Default: the newest run.

    \b
    Example:
      fedloom run refusals digits
    """
    control = Control(directory)
    found = control.get("runs", run_or_newest(control, run), "refusals", limit=limit)
    rows = (
        (
            output.moment(r["at"]),
            output.escape(r["client"] or "-"),
            str(r["round"]),
            f"[yellow]{r['code']}[/]",
            str(r["times"]),
            output.escape(r["message"]),
        )
        for r in found["refusals"]
    )
    columns = ("WHEN", "CLIENT", ">ROUND", "CODE", ">TIMES", "~MESSAGE")
    output.emit_table(found, columns, rows, "No refusals.")


run.add_command(export)
for _command in (*RUN_COMMANDS, *ROUND_COMMANDS):
    run.add_command(_command)
