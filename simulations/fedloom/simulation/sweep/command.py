"""`fedloom sweep`: parallel search over any setting of an experiment."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fedloom.cli.common.lazy import load
from fedloom.cli.common.output import JSON
from fedloom.protocol.errors import UsageError

if TYPE_CHECKING:
    from fedloom.simulation.sweep.outcome import SweepResult


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for pair in given:
        name, equals, setting = pair.partition("=")
        if not (name and equals and setting):
            raise click.BadParameter(f"expected NAME=SETTING, got {pair!r}")
    return dict(pair.split("=", 1) for pair in given)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Simulations at once, one process each.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the study, the table and the plots.  [default: out/NAME]",
)
@click.option(
    "--experiment", metavar="FILE", help="The experiment, instead of the one in the sweep file."
)
@click.option("--trials", type=click.IntRange(1), help="Settings to try, instead of the file's.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Simulations of the same settings, each with its own seed, instead of the file's repeats.",
)
@click.option(
    "--map",
    "names",
    multiple=True,
    callback=_pairs,
    metavar="NAME=SETTING",
    help="For a Comet config: the setting of a parameter; repeatable.",
)
@click.option("--keep", is_flag=True, help="Also keep every simulation's model and report.")
@click.option("--retry-failed", is_flag=True, help="Run failed simulations again.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON document.")
@click.pass_context
def sweep(
    ctx: click.Context, *, file: Path, jobs: int, out: Path | None, experiment: str | None,
    trials: int | None, seeds: int | None, names: dict[str, str], keep: bool,
    retry_failed: bool, as_json: bool,
) -> None:  # fmt: skip
    """Search an experiment's settings for the best: grid, random or Bayesian, in parallel.

    FILE is a sweep in TOML, or an unchanged Comet Optimizer config: JSON, or a Python literal with
    comments. The same command continues an interrupted sweep. A grid runs no settings twice.

    \b
    Examples:
      fedloom sweep sweep.toml -j 4 --seeds 5
      fedloom sweep comet.json --experiment digits.toml --map width=model.width
    """
    ctx.meta[JSON] = as_json
    load("fedloom.simulation.sweep.runner:run")  # names a missing extra
    from fedloom.simulation.sweep import reading  # noqa: PLC0415 - not needed for --help

    found = reading.read(
        file, experiment=experiment, names=names, trials=trials, seeds=seeds
    )  # fmt: skip
    folder = out or Path("out") / file.stem
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    signal.signal(signal.SIGTERM, _interrupt)
    outcome, interrupted = _run(found, folder, jobs, keep, retry_failed)
    _finish(outcome, as_json, interrupted)
    if interrupted:
        ctx.exit(130)
    if outcome.best is None:
        ctx.exit(1)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _run(
    found: Any, folder: Path, jobs: int, keep: bool, retry_failed: bool
) -> "tuple[SweepResult, bool]":
    from rich.console import Console  # noqa: PLC0415

    from fedloom.simulation.sweep import runner  # noqa: PLC0415
    from fedloom.simulation.sweep.display import SweepDisplay  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    try:
        with SweepDisplay(found, console) as display:
            return runner.run(
                found, folder, jobs=jobs, keep=keep, retry_failed=retry_failed, watcher=display
            ), False
    except KeyboardInterrupt:
        return runner.read(found, folder), True


def _finish(outcome: "SweepResult", as_json: bool, interrupted: bool) -> None:
    from fedloom.simulation.sweep import report  # noqa: PLC0415

    files = report.write(outcome)
    report.show(outcome, files, as_json=as_json)
    left = outcome.num_trials - len(outcome.rows)
    if interrupted:
        click.echo(f"interrupted, {left} trials left: the same command continues", err=True)
    elif outcome.best is None and not as_json:
        raise_nothing(outcome)


def raise_nothing(outcome: "SweepResult") -> NoReturn:
    """Report that no simulation finished, and why the first failed.

    Raises:
        UsageError: always.
    """
    reason = next((row.reason for row in outcome.rows if row.reason), "no trial ended")
    raise UsageError(
        f"None of {len(outcome.rows)} trials finished. The first: {reason.rstrip('.')}. Logs are "
        f"in {outcome.folder / 'trials'}; --retry-failed runs the trials again."
    )
