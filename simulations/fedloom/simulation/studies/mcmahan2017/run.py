"""Run the cells one after another, and write their results in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedloom.cli.common import output
from fedloom.simulation.studies import study
from fedloom.simulation.studies.mcmahan2017 import comparison, reference, search
from fedloom.simulation.studies.mcmahan2017.display import SearchDisplay

COMMITTED = study.COMMITTED / "mcmahan2017"


def run(
    cells: Sequence[search.RateSearch],
    out: Path,
    *,
    finest: int,
    workers: int | None = None,
    quiet: bool = False,
    command: str = "",
    console: Console | None = None,
) -> None:
    """Run the unfinished cells, one after another.

    Args:
        cells: their searches.
        out: folder of all cells.
        finest: step of the grid, `grid.THIRD` or `grid.SIXTH`.
        workers: processes; default: one per core.
        quiet: show nothing.
        command: that repeats the search, for the record.
        console: for the display.

    Raises:
        UsageError: the data are missing, or `out` has other experiments.
        Interrupted: Ctrl-C.
    """
    engine = {} if workers is None else {"workers": workers}
    with SearchDisplay(console or output.console(stderr=True), quiet=quiet) as display:
        for number, cell in enumerate(cells, 1):
            display.begin(cell, f"{number}/{len(cells)}")
            folder = out / cell.name
            search.search(cell, folder, finest=finest, engine=engine, on_event=display.on_event)
            (out / "README.md").write_text(summed_up(out, command), encoding="utf-8")


def summed_up(folder: Path, command: str) -> str:
    """Results in a folder, in Markdown."""
    found = comparison.results(folder)
    return (
        "# McMahan et al. 2017, Tables 1 and 2\n\n"
        f"    {command}\n\n"
        "Rounds to 97 % (2NN) or 99 % (CNN) on MNIST's test examples: monotone curve, linear\n"
        "interpolation, the best learning rate η of a multiplicative grid.\n\n"
        f"{comparison.markdown(comparison.compare(found, plain=reference.read(folder)))}\n"
        "## Every rate\n\n"
        f"{comparison.rates(found)}"
    )
