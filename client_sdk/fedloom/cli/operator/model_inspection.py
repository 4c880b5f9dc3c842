"""Commands that inspect models: lineage, layers, differences, comparisons and promotions."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import digest_of
from fedloom.cli.operator.models import round_option
from fedloom.protocol.errors import UsageError


@click.command()
@click.argument("which", metavar="[RUN|DIGEST]", required=False)
@round_option
@server_options
def lineage(which: str | None, number: int | None, directory: Path) -> None:
    """Show a model's run, round, contributing clients and evaluations.

    \b
    Example:
      fedloom model lineage digits --round 5
    """
    control = Control(directory)
    found = control.get("models", digest_of(control, which, number), "lineage")
    output.emit(found, lambda: _show_lineage(found))


def _show_lineage(found: dict[str, Any]) -> None:
    click.echo(f"model {found['digest']}, {output.size(found['size_bytes'])}")
    for at in found["promoted_at"]:
        click.echo(f"promoted {output.moment(at)}")
    for origin in found["origins"]:
        click.echo()
        _show_origin(origin)
    if not found["origins"]:
        click.echo("No run used or produced it.")
    for e in found["evaluations"]:
        examples = "" if e["num_examples"] is None else f" on {e['num_examples']:g} examples"
        click.echo(f"\nevaluated in round {e['round']} of {e['run']}{examples}: "
                   f"{output.metrics(e)}")  # fmt: skip


def _show_origin(origin: dict[str, Any]) -> None:
    made = f"committed by round {origin['round']} of {origin['run']}"
    if not origin["round"]:
        made = f"initial model of {origin['run']}"
    undone = ", undone by a rollback" if origin["undone_at"] else ""
    before = f", from {origin['model_in'][:12]}" if origin["model_in"] else ""
    click.echo(f"{made}, {output.moment(origin['created_at'])}{before}{undone}")
    if origin["privacy"]:
        click.echo(f"privacy: epsilon {origin['privacy']['epsilon']:.4g} up to this round")
    rows = [
        (output.escape(c["client"]), f"{c['weight']:g}", str(c["round"]),
         output.or_dash(c["staleness"]))
        for c in origin["contributors"]
    ]  # fmt: skip
    if rows:
        output.print_table(("CLIENT", ">WEIGHT", ">SELECTED IN", ">STALENESS"), rows, "")


@click.command("layers")
@click.argument("which", metavar="[RUN|DIGEST]", required=False)
@round_option
@server_options
def show_layers(which: str | None, number: int | None, directory: Path) -> None:
    """Show a model's tensors: shape, norm, largest value.

    \b
    Example:
      fedloom model layers digits
    """
    control = Control(directory)
    found = control.get("models", digest_of(control, which, number), "layers")
    output.emit(found, lambda: _show_layers(found))


@click.command()
@click.argument("before", metavar="DIGEST|RUN:ROUND")
@click.argument("after", metavar="DIGEST|RUN:ROUND")
@server_options
def diff(before: str, after: str, directory: Path) -> None:
    """Show the difference between two models, tensor by tensor.

    A model is a digest, a run (its newest model) or RUN:ROUND.

    \b
    Examples:
      fedloom model diff digits:5 digits:6
      fedloom model diff 25eb5eeb digits
    """
    control = Control(directory)
    base, which = _model(control, before), _model(control, after)
    found = control.get("models", which, "layers", base=base)
    output.emit(found, lambda: _show_layers(found))


def _model(control: Control, text: str) -> str:
    run, colon, number = text.partition(":")
    if colon and not number.isdecimal():
        raise UsageError(f"Expected DIGEST, RUN or RUN:ROUND, got {text!r}.")
    return digest_of(control, run, int(number) if colon else None)


def _show_layers(found: dict[str, Any]) -> None:
    compared = found["base"] is not None
    click.echo(f"model {found['digest'][:12]}, norm {found['norm']:.6g}")
    if compared:
        click.echo(f"from {found['base'][:12]}, difference {found['difference']:.6g}")
    rows = [
        (
            output.escape(layer["name"]),
            "×".join(map(str, layer["shape"])) or "scalar",
            f"{layer['norm']:.6g}",
            f"{layer['max_abs']:.6g}",
            output.or_dash(layer["difference"], "{:.6g}".format),
            output.or_dash(layer["relative"], "{:.3%}".format),
        )
        for layer in found["layers"]
    ]
    columns = ("TENSOR", "SHAPE", ">NORM", ">LARGEST", ">DIFFERENCE", ">OF NORM")
    kept = len(columns) if compared else 4
    click.echo()
    output.print_table(columns[:kept], [row[:kept] for row in rows], "The model has no tensors.")


@click.command()
@click.argument("models", metavar="DIGEST|RUN|RUN:ROUND...", nargs=-1, required=True)
@server_options
def compare(models: tuple[str, ...], directory: Path) -> None:
    """Compare models by origin, promotion and evaluation.

    \b
    Example:
      fedloom model compare digits:5 digits:10 other-run
    """
    control = Control(directory)
    digests = [_model(control, each) for each in models]
    found = control.get("model-comparison", of=digests)
    output.emit(found, lambda: _show_comparison(found["models"]))


def _show_comparison(models: list[dict[str, Any]]) -> None:
    measured = [(m["evaluations"] or [{"values": {}}])[-1] for m in models]
    names = sorted({name for found in measured for name in found["values"]})
    rows = []
    for m, found in zip(models, measured, strict=True):
        origin = (m["origins"] or [{"run": "-", "round": 0}])[-1]
        numbers = [output.metric(found, name) for name in names]
        promoted = output.moment(m["promoted_at"][0]) if m["promoted_at"] else "-"
        rows.append((m["digest"][:12], output.escape(origin["run"]), str(origin["round"]),
                     promoted, *numbers))  # fmt: skip
    columns = ("DIGEST", "RUN", ">ROUND", "PROMOTED", *(f">{name.upper()}" for name in names))
    output.print_table(columns, rows, "No models.")


@click.command()
@click.argument("run", required=False)
@server_options
def promotions(run: str | None, directory: Path) -> None:
    """List promotions, newest first. Clients use the first one.

    \b
    Example:
      fedloom model promotions
    """
    found = Control(directory).get("promotions", limit=1000, **({"run": run} if run else {}))
    rows = (
        (output.moment(p["at"]), p["digest"][:12], output.escape(p["run"]), str(p["round"]),
         output.escape(p["note"]))
        for p in found["promotions"]
    )  # fmt: skip
    output.emit_table(
        found,
        ("WHEN", "DIGEST", "RUN", ">ROUND", "~NOTE"),
        rows,
        "No promotions yet. See `fedloom model promote --help`.",
    )
