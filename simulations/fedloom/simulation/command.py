"""`fedloom simulate`: an experiment on this machine."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import load
from fedloom.cli.common.options import json_option
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import toml

if TYPE_CHECKING:
    from fedloom.simulation.experiment import Experiment
    from fedloom.simulation.output.history import RoundRecord


@click.command()
@click.argument("experiment", metavar="EXPERIMENT")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.html, plots, metrics and the model.  [default: out/NAME]",
)
@click.option("--resume", is_flag=True, help="Continue the simulation in --out.")
@click.option(
    "--accept-changes",
    is_flag=True,
    help="With --resume: accept that code, examples or initial values changed.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one per core]")
@click.option(
    "--set",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    help="Replace a setting, such as train.learning_rate=0.1; repeatable.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Simulate with so many consecutive seeds: means and deviations, in out/NAME-seeds.",
)
@click.option(
    "--over-the-wire",
    is_flag=True,
    help="Run a real server and a process for each client on loopback; the bits are the same.",
)
@click.option("--describe", is_flag=True, help="Describe the experiment and train nothing.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@json_option
def simulate(
    experiment: str,
    *,
    out: Path | None,
    resume: bool,
    accept_changes: bool,
    workers: int | None,
    changes: tuple[str, ...],
    seeds: int | None,
    over_the_wire: bool,
    describe: bool,
    quiet: bool,
) -> None:
    """Simulate an experiment: thousands of clients on this machine, with the server's rounds.

    EXPERIMENT is a TOML file, or FILE.py:NAME with an Experiment in Python. Ctrl-C stops after the
    last finished round, and --resume continues to the same bits.

    \b
    Examples:
      fedloom simulate digits.toml
      fedloom simulate digits.toml --set cohort.goal=20 --set train.learning_rate=0.05
      fedloom simulate digits.toml --resume
      fedloom simulate digits.toml --seeds 5
      fedloom simulate digits.toml --describe --out split
      fedloom simulate digits.toml --over-the-wire
    """
    load("fedloom.simulation.api:simulate")  # names a missing extra
    from fedloom.simulation import api, config  # noqa: PLC0415 - not needed for --help
    from fedloom.simulation.output.history import INTERRUPTED  # noqa: PLC0415
    from fedloom.simulation.wire.harness import over_the_wire as by_wire  # noqa: PLC0415

    overrides = dict(_change(text) for text in changes)
    if seeds is not None and seeds > 1:
        if over_the_wire or describe:
            raise UsageError("--seeds takes neither --over-the-wire nor --describe.")
        _with_seeds(experiment, overrides, seeds, out, workers, show=not quiet)
        return
    if workers is not None:
        overrides["engine.workers"] = workers
    described = config.load(experiment, overrides)
    if describe:
        _describe(described, out)
        return
    show = not quiet and not output.wants_json()
    if over_the_wire:
        if resume or out is not None:
            raise UsageError("--over-the-wire takes neither --out nor --resume.")
        result = by_wire(described, show=show)
    else:
        folder = out or Path("out") / described.spec.name
        command = shlex.join(["fedloom", *sys.argv[1:]])
        result = api.simulate(
            described,
            out=folder,
            resume=resume,
            accept_changes=accept_changes,
            show=show,
            command=command,
        )
    last = result.records[-1] if result.records else None
    output.emit(
        {
            "name": described.spec.name,
            "rounds": last.trained if last else 0,
            "test": dict(last.test) if last else {},
            "virtual_s": last.virtual_s if last else None,
            "digest": result.digest,
            "engine": result.engine,
            "stopped": result.stopped,
            "enough": result.enough,
            "best": result.best_model,
            "privacy": _privacy(described, last),
            "folder": str(result.folder) if result.folder else None,
        },
        lambda: None,
    )
    if result.stopped:
        if quiet and not output.wants_json():
            click.echo(f"stopped: {result.stopped}", err=True)
        raise SystemExit(130 if result.stopped == INTERRUPTED else 1)


def _with_seeds(
    experiment: str, overrides: dict[str, Any], num_seeds: int, out: Path | None,
    workers: int | None, *, show: bool,
) -> None:  # fmt: skip
    """Simulate with several seeds, in a process each; the same command continues."""
    from rich.console import Console  # noqa: PLC0415

    from fedloom.simulation import config  # noqa: PLC0415 - not needed for --help
    from fedloom.simulation.output.environment import available_cpus  # noqa: PLC0415
    from fedloom.simulation.sweep import runner, seeds  # noqa: PLC0415
    from fedloom.simulation.sweep.display import SweepDisplay  # noqa: PLC0415

    described = config.load(experiment, overrides)  # refuses invalid settings now
    if not described.settings:
        raise UsageError(
            f"--seeds sets the seed of {experiment}, which is an Experiment made in Python. Make "
            "its settings there, as a mapping, or simulate it with each seed."
        )
    name = described.spec.name
    folder = out or Path("out") / f"{name}-seeds"
    sweep = seeds.sweep_of(name, experiment, overrides, num_seeds)
    jobs = min(num_seeds, workers or available_cpus())
    with SweepDisplay(sweep, Console(stderr=True, highlight=False, quiet=not show)) as display:
        outcome = runner.run(sweep, folder, jobs=jobs, keep=True, watcher=display)
    files = seeds.write(outcome)
    output.emit(seeds.document(outcome), lambda: seeds.show(outcome, files))
    if outcome.best is None or len(outcome.ranking[0].each) < num_seeds:
        raise SystemExit(1)


def _privacy(experiment: "Experiment", last: "RoundRecord | None") -> dict[str, Any] | None:
    plan = experiment.spec.privacy_plan()
    if plan is None:
        return None
    trained, opened = (last.trained, last.round) if last else (0, 0)
    spent, why = plan.spent(trained, opened), plan.stopped(trained)
    return {**plan.claim(), **spent, "rounds": trained, "stopped": why}


def _describe(experiment: "Experiment", out: Path | None) -> None:
    """Print the clients' data, the model and the engine; with `out`, draw the partition there."""
    from fedloom.simulation.data.heatmap import heat_map  # noqa: PLC0415 - it loads matplotlib
    from fedloom.simulation.data.statistics import statistics  # noqa: PLC0415
    from fedloom.simulation.workers.setup import plan  # noqa: PLC0415 - it loads PyTorch

    people = experiment.population
    facts = {**dict(statistics(people).rows()), **plan(experiment)}
    for name, listed in (("inputs", people.columns), ("names of classes", people.class_names)):
        if listed:
            facts[name] = _listed(listed)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / "partition.png"
        heat_map(people, path, title=experiment.spec.name)
        facts["heat map"] = str(path)
    width = max(map(len, facts))
    output.emit_text(facts, "\n".join(f"{n:{width}}  {v}" for n, v in facts.items()))


def _listed(names: Sequence[str], most: int = 20) -> str:
    """Names with their numbers, such as `0 no, 1 yes`."""
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(names[:most]))
    return shown if len(names) <= most else f"{shown}, … ({len(names):,})"


def _change(text: str) -> tuple[str, Any]:
    """A dotted name and its value as in TOML; other text is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"Expected --set NAME=VALUE, got {text!r}.")
    try:
        return name.strip(), toml.parse(f"value = {value}", "a value")["value"]
    except UsageError:
        return name.strip(), value
