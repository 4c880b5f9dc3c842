"""`fedloom reproduce NAME` for studies: run, table, picture."""

import importlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import load
from fedloom.cli.common.options import json_option

STUDIES = {
    "heterogeneity": "Clients that differ: FedAvg, FedProx, FedAdam, FedNova, SCAFFOLD and FedDyn.",
    "privacy": "What privacy costs: accuracy against epsilon, by mechanism and sampling.",
    "personalisation": "Something of one's own: FedBN, FedPer, FedRep, Ditto, APFL and IFCA.",
}
"""Module in this package → what it shows."""
_HELP = """{about}

Runs that are done are kept and not run again.

\b
Examples:
  fedloom reproduce {name} --quick
  fedloom reproduce {name} --out out/{name}
  fedloom reproduce {name} --committed
"""


def commands() -> list[click.Command]:
    """A command for each study."""
    return [_command(name, about) for name, about in STUDIES.items()]


def _command(name: str, about: str) -> click.Command:
    @click.command(name, help=_HELP.format(about=about, name=name))
    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("out") / name,
        show_default=True,
        help="Folder for the results, the table and the picture.",
    )
    @click.option("--quick", is_flag=True, help="A part of it, in less than a minute.")
    @click.option("--committed", is_flag=True, help="Run nothing: the table of this version.")
    @json_option
    def command(*, out: Path, quick: bool, committed: bool) -> None:
        _show(name, out, quick=quick, committed=committed)

    return command


def _show(name: str, out: Path, *, quick: bool, committed: bool) -> None:
    load("fedloom.simulation.api:simulate")  # names the extra that is missing, if one is
    from fedloom.simulation.studies import plots, study, table  # noqa: PLC0415

    module = importlib.import_module(f"fedloom.simulation.studies.{name}")
    asked = module.study(quick=quick and not committed)
    measure: Callable[..., Any] = getattr(module, "measure", study.trained)
    if committed:
        found = study.Findings.read(study.RESULTS / f"{name}.json")
    else:
        told = _quiet if output.wants_json() else _tell
        command = shlex.join(["fedloom", *sys.argv[1:]])
        found = study.run(asked, out, command=command, measure=measure, told=told)
        (out / f"{name}.md").write_text(table.markdown(asked, found), "utf-8")
        (out / f"{name}.csv").write_text(table.comma_separated(found), "utf-8")
        plots.draw(asked, found, out / f"{name}.png")
    rows = table.cells(asked, found)
    titles = table.titles(asked)
    output.emit(
        [dict(zip(titles, row, strict=True)) for row in rows],
        lambda: output.print_table(titles, rows, "No results yet."),
    )
    if not (committed or output.wants_json()):
        click.echo(f"\nResults, table and picture are in {out}.")


def _tell(done: int, of: int, cell: Any) -> None:
    click.echo(f"\r\033[K{done + 1}/{of} {cell.row}: {cell.column}", nl=done + 1 == of, err=True)


def _quiet(*_: Any) -> None:
    """Say nothing."""
