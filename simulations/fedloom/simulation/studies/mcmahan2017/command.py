"""`fedloom reproduce mcmahan2017`: the paper's results beside ours."""

import shlex
import sys
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import load
from fedloom.cli.common.options import json_option
from fedloom.protocol.errors import UsageError

GRIDS = {"1/3": 2, "1/6": 1}


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of MNIST's four IDX files.  [default: mnist in the cache]",
)
@click.option("--download", is_flag=True, help="Download MNIST (11.6 MB) if it is missing.")
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
    "--only", metavar="NAME", multiple=True, help="Cells by name, * for anything; repeatable."
)
@click.option(
    "--grid",
    type=click.Choice(list(GRIDS)),
    help="Learning rates in steps of 10^(1/3) or 10^(1/6).  [default: 1/6, with --quick 1/3]",
)
@click.option("--cap", type=click.IntRange(1), help="Rounds of a rate at most, for every cell.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random choice.")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one per core]")
@click.option(
    "--reference", is_flag=True, help="Then run a plain numpy loop for the 2NN, three seeds."
)
@click.option("--show", is_flag=True, help="Run nothing: print the table of the results in --out.")
@click.option("--committed", is_flag=True, help="Run nothing: print the repository's table.")
@click.option("--list", "listing", is_flag=True, help="Run nothing: list the cells.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@json_option
def mcmahan2017(
    *, folder: Path | None, download: bool, out: Path, quick: bool, everything: bool,
    only: tuple[str, ...], grid: str | None, cap: int | None, seed: int, workers: int | None,
    reference: bool, show: bool, committed: bool, listing: bool, quiet: bool,
) -> None:  # fmt: skip
    """McMahan et al. 2017, Tables 1 and 2: rounds of FedAvg to a target accuracy on MNIST.

    Each cell of the tables is run at learning rates from a multiplicative grid, which grows until
    the best is in its middle. Run the same command again to continue: finished rates are not
    repeated, and an interrupted rate continues to the same bits.

    \b
    Examples:
      fedloom reproduce mcmahan2017 --download --quick
      fedloom reproduce mcmahan2017 --folder mnist
      fedloom reproduce mcmahan2017 --folder mnist --only '2nn-iid-*-b10'
      fedloom reproduce mcmahan2017 --folder mnist --quick --reference
      fedloom reproduce mcmahan2017 --committed
    """
    load("fedloom.simulation.api:simulate")  # names a missing extra
    from fedloom.simulation.studies.mcmahan2017 import cells, comparison, run  # noqa: PLC0415
    from fedloom.simulation.studies.mcmahan2017 import reference as plain  # noqa: PLC0415

    if quick + everything + bool(only) > 1:
        raise UsageError("Give at most one of --quick, --all and --only.")
    if committed and not run.COMMITTED.exists():
        raise UsageError(
            "The committed results are in the repository, in simulations/results, and not in the "
            "installed package."
        )
    otherwise = cells.QUICK if quick else cells.ALL if everything else cells.USUAL
    settings = cells.chosen(only, otherwise)
    if listing:
        names = [setting.name for setting in settings]
        output.emit_text(names, "\n".join(names))
        return
    if not (show or committed):
        shown = shlex.join(["fedloom", *sys.argv[1:]])
        data = {"folder": str(folder) if folder else None, "download": download}
        run.run(
            [cells.cell(setting, data=data, seed=seed, cap=cap) for setting in settings],
            out,
            finest=GRIDS[grid or ("1/3" if quick else "1/6")],
            workers=workers,
            quiet=quiet or output.wants_json(),
            command=shown,
        )
        if reference:
            plain.run(
                settings,
                comparison.results(out),
                out,
                data=data,
                on_run=(lambda _: None) if quiet else lambda line: click.echo(line, err=True),
            )
            (out / "README.md").write_text(run.summed_up(out, shown), encoding="utf-8")
    folder_shown = run.COMMITTED if committed else out
    found = comparison.results(folder_shown)
    rows = comparison.compare(found, plain=plain.read(folder_shown))
    output.emit(
        [row.as_dict() for row in rows],
        lambda: output.print_table(
            comparison.titles(), [row.cells() for row in rows], f"No results in {out} yet."
        ),
    )
