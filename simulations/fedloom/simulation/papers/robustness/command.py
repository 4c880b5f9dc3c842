"""`fedloom reproduce robustness`: every rule under every attack, from one command."""

import shlex
import sys
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import load
from fedloom.cli.common.options import json_option

SEEDS, ROUNDS, QUICK_ROUNDS = 3, 40, 30


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/robustness"),
    show_default=True,
    help="Folder for the table, the picture, JSON and CSV.",
)
@click.option("--quick", is_flag=True, help="One seed and three attacks: less than a minute.")
@click.option("--only", metavar="RULE", multiple=True, help="Some rules; may be repeated.")
@click.option("--seeds", type=click.IntRange(1), help=f"How many seeds.  [default: {SEEDS}]")
@click.option("--rounds", type=click.IntRange(1), help=f"Of each.  [default: {ROUNDS}]")
@click.option("--workers", type=click.IntRange(1), help="Processes; as many as cores by default.")
@click.option("--show", is_flag=True, help="Run nothing: the table of what lies in --out.")
@click.option("--committed", is_flag=True, help="Run nothing: the table that comes with fedloom.")
@click.option("--quiet", is_flag=True, help="No line for each simulation.")
@json_option
def robustness(
    *, out: Path, quick: bool, only: tuple[str, ...], seeds: int | None, rounds: int | None,
    workers: int | None, show: bool, committed: bool, quiet: bool,
) -> None:  # fmt: skip
    """Robust rules on the digits while a fifth of the clients attacks.

    Every rule under every attack: sign flipping, scaling by 100, and collusion ("a little is
    enough"). Writes a table, a picture, JSON and CSV.

    \b
    Examples:
      fedloom reproduce robustness --quick
      fedloom reproduce robustness --only mean --only krum
      fedloom reproduce robustness --committed
    """
    load("fedloom.simulation.api:simulate")  # names the extra that is missing, if one is
    from fedloom.simulation.papers.robustness import cells, report, run  # noqa: PLC0415

    if not (show or committed):
        chosen = cells.cells(
            only or tuple(cells.RULES),
            cells.QUICK if quick else tuple(cells.COLUMNS),
            seeds=seeds or (1 if quick else SEEDS),
            rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        )
        told = 0

        def done(one: run.Found) -> None:
            nonlocal told
            told += 1
            if not (quiet or output.wants_json()):
                line = f"{told}/{len(chosen)}  {one.rule} under {one.attack}: {one.accuracy:.3f}"
                click.echo(line, err=True)

        found = run.run(chosen, workers=workers, done=done)
        report.write(found, out, shlex.join(["fedloom", *sys.argv[1:]]))
    found = report.read(report.COMMITTED if committed else out)
    titles, lines = report.rows(found)
    output.emit(
        [one.as_dict() for one in found],
        lambda: output.print_table(titles, lines, f"No results in {out} yet."),
    )
