"""`fedloom new`: a folder with a client, a run and tests that work as they are."""

import shlex
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import json_option

KINDS = (
    ("torch", "A network of PyTorch; the default where it is installed."),
    ("sklearn", "A linear model of scikit-learn."),
    ("numpy", "A model in numpy; the base installation is enough."),
    ("hf", "A tiny language model of transformers; nothing is downloaded."),
)


def kind_options(function: click.decorators.FC) -> click.decorators.FC:
    """One flag for each kind; `kind` gets the name of the one that is given."""

    def choose(ctx: click.Context, option: click.Parameter, value: bool) -> None:
        given = ctx.params.setdefault("kind", None)
        if value and given is not None:
            raise click.UsageError(f"Give one kind: --{given} or --{option.name}, not both.")
        if value:
            ctx.params["kind"] = option.name

    for name, text in reversed(KINDS):
        function = click.option(
            f"--{name}", is_flag=True, expose_value=False, callback=choose, help=text
        )(function)
    return function


@click.command()
@click.argument("name", metavar="NAME", type=click.Path(path_type=Path))
@kind_options
@click.option(
    "--csv", "table", metavar="FILE", type=click.Path(path_type=Path),
    help="Your data: a table whose first line names its columns. Without it: invented data.",
)  # fmt: skip
@click.option("--label", metavar="COLUMN", help="Column to predict, of --csv.")
@click.option(
    "--predict",
    type=click.Choice(["class", "number"]),
    help="What the label is, if its values do not show it.",
)
@click.option("--by", metavar="COLUMN", help="A client for each value of this column, of --csv.")
@click.option(
    "--clients",
    type=click.IntRange(1, 16),
    help="Deal the rows of --csv to so many clients.  [default: 3]",
)
@json_option
def new(
    name: Path,
    kind: str | None,
    *,
    table: Path | None,
    label: str | None,
    predict: str | None,
    by: str | None,
    clients: int | None,
) -> None:
    """Write a folder with training code, data, a run and tests, which work as they are.

    `fedloom up NAME` then trains on this machine; the folder's README has the commands for real
    devices. Nothing is overwritten.

    \b
    Examples:
      fedloom new wards --csv visits.csv --label outcome --by hospital
      fedloom new machines --torch
      fedloom up machines
    """
    from fedloom.cli.project import examples, folder, kinds, tables  # noqa: PLC0415 - they import numpy

    if table is None and (given := _given(label=label, predict=predict, by=by, clients=clients)):
        raise click.UsageError(f"--{given} belongs to --csv FILE.")
    if by is not None and clients is not None:
        raise click.UsageError("Give --by or --clients, not both.")
    if kind == "hf" and table is not None:
        raise click.UsageError(
            "--hf learns from text: give --csv with --torch, --sklearn or --numpy."
        )
    target = name.absolute()
    folder.check_target(target)
    chosen = kinds.choose(kind)
    if chosen.name == "hf":
        data = {f"data/{site}.txt": text for site, text in examples.notes().items()}
        columns, notes = None, ["data      invented notes on machines; replace the files in data/"]
    else:
        columns, notes, data = tables.decided(
            table, label=label, predict=predict, by=by, clients=clients or 3
        )
    folder.write(target, folder.all_files(target.name, chosen, columns, data))
    sites = [Path(path) for path in data if path.startswith("data/")]
    document = {
        "folder": str(target),
        "kind": chosen.name,
        "clients": [path.stem for path in sites],
        "decided": notes,
    }
    output.emit_text(
        document,
        "\n".join(
            (
                f"Created {name}: {chosen.title}, {len(sites)} clients.",
                *(f"  {note}" for note in notes),
                f"Next:\n  {shlex.join(('fedloom', 'up', str(name)))}",
            )
        ),
    )


def _given(**options: object) -> str | None:
    return next((name for name, value in options.items() if value is not None), None)
