"""`fedloom reproduce`: a published table from one command, the paper's figures beside ours."""

import shlex
import sys
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import load
from fedloom.cli.common.options import json_option
from fedloom.protocol.errors import UsageError
from fedloom.simulation.papers.robustness.command import robustness
from fedloom.simulation.studies.command import commands as studies

GRIDS = {"1/3": 2, "1/6": 1}


@click.group()
def reproduce() -> None:
    """Reproduce a published table, or a study of what strategies stand up to."""


for _study in studies():
    reproduce.add_command(_study)


@reproduce.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where MNIST's four IDX files lie.  [default: mnist in the cache]",
)
@click.option("--download", is_flag=True, help="Fetch MNIST (11.6 MB) if it is not there.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/mcmahan2017"),
    show_default=True,
    help="Folder for every run, the results and the table.",
)
@click.option("--quick", is_flag=True, help="Three cells on the coarse grid: minutes.")
@click.option("--all", "everything", is_flag=True, help="Every cell of the two tables: days.")
@click.option(
    "--only", metavar="NAME", multiple=True, help="Cells by name, * for anything; may be repeated."
)
@click.option(
    "--grid",
    type=click.Choice(list(GRIDS)),
    help="Learning rates in steps of 10^(1/3) or 10^(1/6).  [default: 1/6, with --quick 1/3]",
)
@click.option("--cap", type=click.IntRange(1), help="Rounds a rate may take, for every cell.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all that is drawn.")
@click.option("--workers", type=click.IntRange(1), help="Processes; as many as cores by default.")
@click.option("--show", is_flag=True, help="Run nothing: the table of what lies in --out.")
@click.option("--committed", is_flag=True, help="Run nothing: the table that comes with fedloom.")
@click.option("--list", "listing", is_flag=True, help="Run nothing: the cells that would be run.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@json_option
def mcmahan2017(
    *, folder: Path | None, download: bool, out: Path, quick: bool, everything: bool,
    only: tuple[str, ...], grid: str | None, cap: int | None, seed: int, workers: int | None,
    show: bool, committed: bool, listing: bool, quiet: bool,
) -> None:  # fmt: skip
    """McMahan et al. 2017, Tables 1 and 2: rounds of FedAvg to a target accuracy on MNIST.

    Each cell of the tables is run at learning rates from a multiplicative grid, which grows until
    the best lies in its middle. Run the same command again to go on: what is done is not run again,
    and what was cut goes on to the same bits.

    \b
    Examples:
      fedloom reproduce mcmahan2017 --download --quick
      fedloom reproduce mcmahan2017 --folder mnist
      fedloom reproduce mcmahan2017 --folder mnist --only '2nn-iid-*-b10'
      fedloom reproduce mcmahan2017 --committed
    """
    load("fedloom.simulation.api:simulate")  # names the extra that is missing, if one is
    from fedloom.simulation.papers.mcmahan2017 import cells, comparison, run  # noqa: PLC0415

    if quick + everything + bool(only) > 1:
        raise UsageError("Expected at most one of --quick, --all and --only, got several.")
    otherwise = cells.QUICK if quick else cells.ALL if everything else cells.USUAL
    settings = cells.chosen(only, otherwise)
    if listing:
        names = [setting.name for setting in settings]
        output.emit(names, lambda: click.echo("\n".join(names)))
        return
    if not (show or committed):
        data = {"folder": str(folder) if folder else None, "download": download}
        run.run(
            [cells.cell(setting, data=data, seed=seed, cap=cap) for setting in settings],
            out,
            finest=GRIDS[grid or ("1/3" if quick else "1/6")],
            workers=workers,
            quiet=quiet or output.wants_json(),
            command=shlex.join(["fedloom", *sys.argv[1:]]),
        )
    found = comparison.results(run.COMMITTED if committed else out)
    rows = comparison.compare(found)
    output.emit(
        [row.as_dict() for row in rows],
        lambda: output.print_table(
            comparison.titles(), [row.cells() for row in rows], f"No results in {out} yet."
        ),
    )


@reproduce.command()
@click.option(
    "--data",
    type=click.Choice(["digits", "mnist"]),
    default="digits",
    show_default=True,
    help="The task: digits needs no download.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where MNIST's four IDX files lie.  [default: mnist in the cache]",
)
@click.option("--download", is_flag=True, help="Fetch MNIST (11.6 MB) if it is not there.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/compression"),
    show_default=True,
    help="Folder for the results, the tables and the picture.",
)
@click.option(
    "--only", metavar="NAME", multiple=True, help="Cases by name, * for anything; may be repeated."
)
@click.option("--rounds", type=click.IntRange(1), help="Of each run.  [default: 60, MNIST 40]")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="To average.")
@click.option("--show", is_flag=True, help="Run nothing: the table of what lies in --out.")
@click.option("--committed", is_flag=True, help="Run nothing: the table that comes with fedloom.")
@click.option("--quiet", is_flag=True, help="Say nothing on the way.")
@json_option
def compression(
    *, data: str, folder: Path | None, download: bool, out: Path, only: tuple[str, ...],
    rounds: int | None, seeds: int, show: bool, committed: bool, quiet: bool,
) -> None:  # fmt: skip
    """Bytes on the wire and accuracy of every codec, against float32.

    Each case is run by a real server and real client processes, behind a relay that counts every
    byte between them, and simulated with several seeds; of the first seed both must end with the
    same bits. What is measured already is not run again.

    \b
    Examples:
      fedloom reproduce compression
      fedloom reproduce compression --only int8 --only 'top-*' --seeds 1
      fedloom reproduce compression --data mnist --folder mnist
      fedloom reproduce compression --committed
    """
    load("fedloom.simulation.api:simulate")  # names the extra that is missing, if one is
    from fedloom.simulation.papers.compression import cases, run, table  # noqa: PLC0415

    chosen = cases.chosen(only)
    if not (show or committed):
        settings: dict[str, object] = {"source": data}
        if data == "mnist":
            settings |= {"download": download} | ({"folder": str(folder)} if folder else {})
        run.run(
            chosen,
            out,
            data=settings,
            rounds=rounds or cases.ROUNDS[data],
            seeds=seeds,
            told=(lambda _: None) if quiet or output.wants_json() else click.echo,
        )
        table.write(run.load(out), out, shlex.join(["fedloom", *sys.argv[1:]]))
    found = run.load(run.COMMITTED if committed else out)
    output.emit(
        table.rows(found),
        lambda: output.print_table(
            ("task", *table.TITLES),
            [[each.data, *row] for each, row in zip(found, table.cells(found), strict=True)],
            f"No results in {out} yet.",
        ),
    )


reproduce.add_command(robustness)
