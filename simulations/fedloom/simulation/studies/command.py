"""`fedloom reproduce`: a study, or a published table, from one command."""

import importlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup, load
from fedloom.cli.common.options import json_option
from fedloom.protocol.errors import UsageError
from fedloom.simulation.studies.mcmahan2017.command import mcmahan2017

STUDIES = {
    "robustness": "Robust rules on the digits while a fifth of the clients attacks.",
    "compression": "Bytes on the wire and accuracy of every codec, against float32.",
    "heterogeneity": "Clients that differ: FedAvg, FedProx, FedAdam, FedNova, SCAFFOLD and FedDyn.",
    "privacy": "The cost of privacy: accuracy against epsilon, by mechanism and sampling.",
    "adapters": "Averages of low-rank adapters on a tiny GPT: factors, products, stacks.",
    "masking": "Masked sums: accuracy, bytes and time in clear, in 64 to 16 bits, and with noise.",
    "personalisation": "Personalised models: FedBN, FedPer, FedRep, Ditto, APFL and IFCA.",
}
"""Module in this package → its description."""
PAPERS = {
    "fedprox2020": "FedProx, Li et al. 2020: synthetic data, stragglers (Figures 1 and 2).",
    "scaffold2020": "SCAFFOLD, Karimireddy et al. 2020: local steps and similarity (Table 3).",
    "fedopt2021": "Adaptive server optimizers, Reddi et al. 2021 (Table 1).",
    "fedbuff2022": "FedBuff, Nguyen et al. 2022: concurrency, on the virtual clock.",
}
"""Likewise of published tables, which have a plain numpy loop as a reference."""
_HELP = """{about}

Writes a table, a picture, JSON and CSV. Finished runs are not repeated.

\b
Examples:
  fedloom reproduce {name} --quick
  fedloom reproduce {name} --out out/{name}
  fedloom reproduce {name} --committed
"""
_DATA: list[Callable[..., Any]] = [
    click.option(
        "--data",
        type=click.Choice(["digits", "mnist"]),
        default="digits",
        show_default=True,
        help="The task: digits needs no download.",
    ),
    click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of MNIST's four IDX files.  [default: mnist in the cache]",
    ),
    click.option("--download", is_flag=True, help="Download MNIST (11.6 MB) if it is missing."),
]
_MORE_OPTIONS: dict[str, list[Callable[..., Any]]] = {
    "compression": _DATA,
    "masking": _DATA,
    **{
        name: [
            click.option(
                "--reference",
                is_flag=True,
                help="Also run a plain numpy loop, and show it beside ours.",
            )
        ]
        for name in PAPERS
    },
}
"""Options of single studies, passed to their `study` function."""


@click.group(cls=LazyGroup)
def reproduce() -> None:
    """Reproduce a published table, or a study that compares strategies."""


def _command(name: str, about: str) -> click.Command:
    @click.command(name, help=_HELP.format(about=about, name=name))
    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("out") / name,
        show_default=True,
        help="Folder for the results, the table and the picture.",
    )
    @click.option("--quick", is_flag=True, help="Run a part, in less than a minute.")
    @click.option(
        "--only", metavar="NAME", multiple=True, help="Rows by name, * for anything; repeatable."
    )
    @click.option("--seeds", type=click.IntRange(1), help="Runs of each cell.")
    @click.option("--rounds", type=click.IntRange(1), help="Rounds of each run.")
    @click.option("--workers", type=click.IntRange(1), help="Processes for the runs.")
    @click.option("--show", is_flag=True, help="Run nothing: print the results in --out.")
    @click.option("--committed", is_flag=True, help="Run nothing: print the repository's table.")
    @click.option("--quiet", is_flag=True, help="Print no line for each run.")
    @json_option
    def command(**options: Any) -> None:
        load("fedloom.simulation.api:simulate")  # names a missing extra
        _run(name, **options)

    for option in _MORE_OPTIONS.get(name, ()):
        command = option(command)
    return command


def _run(
    name: str, *, out: Path, quick: bool, only: tuple[str, ...], seeds: int | None,
    rounds: int | None, workers: int | None, show: bool, committed: bool, quiet: bool,
    reference: bool = False, **more: Any,
) -> None:  # fmt: skip
    from fedloom.simulation.output.environment import available_cpus  # noqa: PLC0415
    from fedloom.simulation.studies import published, runner, table  # noqa: PLC0415 - they import torch
    from fedloom.simulation.studies.study import COMMITTED, StudyResults  # noqa: PLC0415

    declared = importlib.import_module(f"fedloom.simulation.studies.{name}").study
    more |= {"rounds": rounds} if rounds else {}
    study = runner.only(declared(quick=quick and not (show or committed), **more), only)
    if name in PAPERS and (reference or show or committed):
        study = published.with_reference(study)
    if committed and not (COMMITTED / name).exists():
        raise UsageError(
            f"The committed results of {name} are in the repository, in simulations/results, and "
            "not in the installed package. Omit --committed to run the study."
        )
    if not (show or committed):
        study = replace(study, seeds=range(seeds)) if seeds else study
        results = runner.run(
            study,
            out,
            command=shlex.join(["fedloom", *sys.argv[1:]]),
            processes=workers or (available_cpus() if study.in_processes else 0),
            on_run=(lambda *_: None) if quiet or output.wants_json() else _print_run,
        )
        runner.report(study, results, out)
    else:
        results = StudyResults.read(COMMITTED / name if committed else out)
    titles, rows = table.titles(study, results), table.cells(study, results)
    as_json = study.as_json(results) if study.as_json else [
        dict(zip(titles, row, strict=True)) for row in rows
    ]  # fmt: skip
    output.emit(as_json, lambda: output.print_table(titles, rows, f"No results in {out} yet."))
    if study.claims and rows and not output.wants_json():
        claims = table.claims(study, results)
        output.print_table(table.claim_titles(study, results), claims, "")
    if not (show or committed or output.wants_json()):
        click.echo(f"\nResults, table and picture are in {out}.")


def _print_run(done: int, of: int, one: Any) -> None:
    name = "accuracy" if "accuracy" in one.values else next(iter(one.values))
    found = f"{name} {one.values[name]:.3f}"
    text = f"{done}/{of}  {one.row}, {one.column}, seed {one.seed}: {found}"
    click.echo(text, err=True)


reproduce.add_command(mcmahan2017)
for _name, _about in (PAPERS | STUDIES).items():
    reproduce.add_command(_command(_name, _about))
