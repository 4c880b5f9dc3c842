"""One experiment with several seeds: `fedloom simulate --seeds`, a sweep without parameters.

Every metric's last value is a mean ± the sample standard deviation (n - 1) over the seeds.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.server.engine import mode_of
from fedloom.simulation.output import curves, figures, words
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.objective import TRAINED, Objective
from fedloom.simulation.sweep.outcome import FINISHED, Sample, SweepResult
from fedloom.simulation.sweep.pictures.curves import curves_figure
from fedloom.simulation.sweep.settings import Sweep
from fedloom.simulation.sweep.space import Parameter

Measures = dict[str, dict[int, float]]
"""A metric's name with its source, such as `test.accuracy` → its last value by seed."""


def sweep_of(name: str, experiment: str, changes: Mapping[str, Any], num_seeds: int) -> Sweep:
    """The sweep of an experiment over consecutive seeds.

    Args:
        name: of the experiment.
        experiment: its file, or `FILE.py:NAME` with settings.
        changes: of settings by dotted name; `seed` is the first seed.
        num_seeds: simulations.
    """
    return Sweep(
        name=name,
        experiment=Path(experiment),
        objective=Objective(metric=TRAINED, direction="maximize"),
        parameters=tuple(
            Parameter(name=each, setting=each, values=(value,))
            for each, value in changes.items()
            if each != "seed"
        ),
        repeats=num_seeds,
        seed=changes.get("seed"),
    )


def measures(outcome: SweepResult) -> Measures:
    """The last value of every metric, and the bytes and times, by seed."""
    found: Measures = {}
    for row in outcome.rows:
        if row.state != FINISHED:
            continue
        seed = row.settings["seed"]
        for line in _lines(outcome.folder, row.trial):
            for source in curves.SOURCES:
                for name, value in (line.get(source) or {}).items():
                    if value is not None:
                        found.setdefault(f"{source}.{name}", {})[seed] = value
        for name in ("bytes_down", "bytes_up", "virtual_s", "wall_s"):
            if (value := getattr(row, name)) is not None:
                found.setdefault(name, {})[seed] = value
    return found


def _lines(folder: Path, trial: int) -> list[dict[str, Any]]:
    path = folder / "trials" / f"{trial:04d}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def document(outcome: SweepResult) -> dict[str, Any]:
    """The result as a JSON document."""
    found = measures(outcome)
    return {
        "name": outcome.sweep.name,
        "folder": str(outcome.folder),
        "seeds": outcome.sweep.repeats,
        "complete": len(outcome.rows) == outcome.num_trials,
        "deviation": "sample standard deviation, n - 1, over the seeds",
        "measures": {
            name: {"mean": sample.mean, "deviation": sample.deviation, "values": by_seed}
            for name, by_seed in found.items()
            if (sample := Sample(tuple(by_seed.values())))
        },
        "failed": {r.settings["seed"]: r.reason for r in outcome.rows if r.state != FINISHED},
    }


def write(outcome: SweepResult) -> list[Path]:
    """Write `seeds.csv`, a line for each seed, and the main metric's mean curves with bands."""
    found = measures(outcome)
    path = outcome.folder / "seeds.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "state", *found, "reason"])
        for row in outcome.rows:
            seed = row.settings["seed"]
            values = [by_seed.get(seed, "") for by_seed in found.values()]
            writer.writerow([seed, row.state, *values, row.reason])
    names: dict[str, list[str]] = {}
    for name in found:
        source, dot, metric = name.partition(".")
        if dot:
            names.setdefault(source, []).append(metric)
    main = curves.main_of(names)
    if main is None:
        return [path]
    metric = ".".join(main)
    falls = mode_of(metric) == "min"
    objective = Objective(metric=metric, direction="minimize" if falls else "maximize")
    shown = replace(outcome, sweep=replace(outcome.sweep, objective=objective))
    drawn = [
        ("curves", curves_figure(shown, "trained")),
        ("curves-by-bytes", curves_figure(shown, "bytes")),
        ("curves-by-virtual-time", curves_figure(shown, "virtual_s")),
    ]
    return [path, *figures.save_all(outcome.folder, drawn)]


def show(outcome: SweepResult, files: list[Path]) -> None:
    """Print a line for each metric: mean, deviation and number of seeds."""
    rows = []
    for name, by_seed in measures(outcome).items():
        sample = Sample(tuple(by_seed.values()))
        rows.append([name, table.with_deviation(_form(name), sample), str(len(by_seed))])
    output.print_table(["", ">mean", ">seeds"], rows, "No simulation finished.")
    click.echo(table.deviation_note(outcome.sweep.repeats))
    for row in outcome.rows:
        if row.state != FINISHED:
            click.echo(f"seed {row.settings['seed']} {row.state}: {row.reason}")
    click.echo(f"{outcome.folder}: {', '.join(path.name for path in files)}, trials")


def _form(name: str) -> Any:
    if name.startswith("bytes_"):
        return output.size
    if name.endswith("_s") and "." not in name:
        return words.duration
    return lambda value: words.metric(name.rpartition(".")[2], value)
