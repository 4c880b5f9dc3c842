"""`fedloom model`: what runs begin with and what they made."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli import output
from fedloom.cli.control import Control
from fedloom.cli.lazy import OrderedGroup
from fedloom.cli.options import directory_option, json_option
from fedloom.cli.which import newest
from fedloom.protocol.errors import UsageError


@click.group(cls=OrderedGroup)
def model() -> None:
    """Make, list and export models, as safetensors."""


@model.command("list")
@click.argument("run", required=False)
@directory_option
@json_option
def list_models(run: str | None, directory: Path) -> None:
    """List models, oldest first: of one RUN, or of all. Round 0 is what a run began with.

    \b
    Example:
      fedloom model list digits
    """
    found = Control(directory).get("models", **({"run": run} if run else {}))
    rows = (
        (
            m["digest"][:12],
            output.escape(m["run"]),
            str(m["round"]),
            output.size(m["size_bytes"]),
            output.moment(m["created_at"]),
        )
        for m in found["models"]
    )
    output.emit(
        found,
        lambda: output.print_table(
            ("DIGEST", "RUN", ">ROUND", ">SIZE", "MADE"),
            rows,
            "No models yet: submit a run with `fedloom run submit`.",
        ),
    )


@model.command()
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where to write it; replaced if it exists.",
)
@json_option
def init(code: str, out: Path) -> None:
    """Write the model that a run begins with, from the code of a client.

    NAME is a client that has `initial`, as those of fedloom.client.torch and sklearn do, or a dict
    of arrays by name, or what makes one of these without arguments.

    \b
    Example:
      fedloom model init my_client.py:client --out init.safetensors
      fedloom run submit run.toml --model init.safetensors
    """
    from fedloom.cli.loading import initial_model  # noqa: PLC0415 - it imports people's code
    from fedloom.client import save_file  # noqa: PLC0415

    params = initial_model(code)
    save_file(params, out)
    shown = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in params.items()
    }
    values = sum(array.size for array in params.values())
    output.emit(
        {"file": str(out), "tensors": shown},
        lambda: click.echo(f"{len(params)} tensors of {values:,} values in all: {out}"),
    )


@model.command()
@click.argument("which", metavar="[RUN|DIGEST]", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where to write it; replaced if it exists.",
)
@click.option("--round", "number", type=int, help="The model that this round committed.")
@directory_option
@json_option
def export(which: str | None, out: Path, number: int | None, directory: Path) -> None:
    """Write a model to a file, verified against its digest.

    A run's newest model, or that of one of its rounds, or any model by its digest; without an
    argument, the newest run's. Any safetensors library reads the file.

    \b
    Examples:
      fedloom model export --out model.safetensors
      fedloom model export digits --round 5 --out round5.safetensors
    """
    control = Control(directory)
    digest, size_bytes = control.download("models", _digest(control, which, number), out=out)
    document = {"digest": digest, "size_bytes": size_bytes, "file": str(out)}
    output.emit(document, lambda: click.echo(f"{out}: {output.size(size_bytes)}, SHA-256 {digest}"))


@model.command()
@click.argument("which", metavar="RUN|DIGEST")
@click.option("--round", "number", type=int, help="The model that this round committed.")
@click.option("--note", default="", help="For people.")
@click.option("--preview", is_flag=True, help="Say what it would do, and do nothing.")
@directory_option
@json_option
def promote(which: str, number: int | None, note: str, preview: bool, directory: Path) -> None:
    """Say that a model is the one to use: clients that ask for the promoted model get it.

    A run's newest model, or that of one of its rounds, or any model by its digest.

    \b
    Example:
      fedloom model promote digits --round 5 --note "best on the hold-out"
    """
    control = Control(directory)
    digest = _digest(control, which, number)
    query = {"preview": "true"} if preview else {}
    done = control.post("models", digest, "promote", body={"note": note}, **query)
    output.emit(done, lambda: click.echo(done["consequence"]))


@model.command()
@click.argument("run")
@click.argument("number", metavar="ROUND", type=int)
@click.option("--preview", is_flag=True, help="Say what it would do, and do nothing.")
@directory_option
@json_option
def rollback(run: str, number: int, preview: bool, directory: Path) -> None:
    """Have RUN go on from the model and the state of an earlier ROUND; 0 is its beginning.

    Its open round is given up, and the rounds since are no part of it any more. Privacy that was
    spent stays spent.

    \b
    Example:
      fedloom model rollback digits 5 --preview
    """
    query = {"preview": "true"} if preview else {}
    done = Control(directory).post("runs", run, "rollback", body={"round": number}, **query)
    output.emit(done, lambda: click.echo(done["consequence"]))


def _digest(control: Control, which: str | None, number: int | None) -> str:
    """Which model is meant: a run's, if a run is called that, or else one by its digest."""
    runs: list[dict[str, Any]] = control.get("runs")["runs"]
    which = which or newest(runs)
    matches = [r for r in runs if r["id"] == which] or [
        r for r in runs if r["id"].startswith(which)
    ]
    if len(matches) > 1:
        several = ", ".join(r["id"] for r in matches[:5])
        raise UsageError(f"Expected one run that begins with {which!r}, got {several}.")
    if not matches and number is not None:
        raise UsageError(f"Expected a run with --round, got {which!r}: see `fedloom run list`.")
    if not matches:
        return which
    run = matches[0]
    return str(run["model"]) if number is None else _of_round(control, run["id"], number)


def _of_round(control: Control, run: str, number: int) -> str:
    models = control.get("models", run=run)["models"]
    for found in models:
        if found["round"] == number:
            return str(found["digest"])
    known = ", ".join(str(m["round"]) for m in models)
    raise UsageError(f"Expected a round of {run} with a model ({known}), got {number}.")
