"""A study: experiments in rows and columns, each over several seeds, run once and kept.

Invariant: a run that is kept is not run again, so a study that was cut goes on where it was.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One experiment of a study.

    Attributes:
        row: what it is about, such as the strategy.
        column: under which conditions.
        settings: of the experiment, as its file has them, without the seed.
    """

    row: str
    column: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one run gave.

    Attributes:
        row: of its cell.
        column: of its cell.
        seed: of data, model and cohorts.
        values: by name, such as `accuracy` and `loss` on the test examples at the end.
        curve: test accuracy by training round: (round, accuracy).
    """

    row: str
    column: str
    seed: int
    values: Mapping[str, float]
    curve: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A cell over its seeds.

    Attributes:
        mean: over the seeds.
        spread: the standard deviation over the seeds, n - 1; 0 for a single one.
        runs: how many seeds.
    """

    mean: float
    spread: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study is called and asks.

    Attributes:
        name: of its files and its command.
        title: of its table and its picture.
        about: of rows: what they are, such as "strategy".
        metric: the value that the table shows.
        cells: in the order of the table.
        seeds: of each cell.
        remarks: to read with the table, Markdown.
    """

    name: str
    title: str
    about: str
    metric: str
    cells: Sequence[Cell]
    seeds: Sequence[int]
    remarks: str = ""


Measure = Callable[[Cell, int], Finding]
"""Runs one cell with one seed."""


@dataclass(slots=True)
class Findings:
    """All runs of a study.

    Attributes:
        command: that made them.
        runs: in the order of the study.
    """

    command: str
    runs: list[Finding] = field(default_factory=list)

    def entry(self, row: str, column: str, metric: str) -> Entry | None:
        """Mean and spread of one cell; None where no run gave this."""
        values = [
            run.values[metric]
            for run in self.runs
            if (run.row, run.column) == (row, column) and metric in run.values
        ]
        if not values:
            return None
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return Entry(mean=statistics.fmean(values), spread=spread, runs=len(values))

    def write(self, path: Path) -> None:
        """Keep them as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        note = {"command": self.command, "runs": [asdict(run) for run in self.runs]}
        write_whole(path, json.dumps(note, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Findings":
        """Read what `write` wrote.

        Raises:
            UsageError: there is nothing.
        """
        if not path.exists():
            raise UsageError(f"Expected the results of a study in {path}, got no file.")
        note = json.loads(path.read_text())
        return cls(note["command"], [Finding(**run) for run in note["runs"]])


def trained(cell: Cell, seed: int) -> Finding:
    """Simulate a cell's experiment; its values are the last test's."""
    experiment = config.load({**cell.settings, "seed": seed})
    result = simulate(experiment, show=False)
    tests = [(record.trained, record.test) for record in result.records if record.test]
    if not tests:
        raise UsageError(f"Expected a test in {cell.row}, {cell.column}, got {result.stopped!r}.")
    return Finding(
        row=cell.row,
        column=cell.column,
        seed=seed,
        values=dict(tests[-1][1]),
        curve=[(number, test["accuracy"]) for number, test in tests if "accuracy" in test],
    )


def run(
    study: Study,
    out: Path,
    *,
    command: str,
    measure: Measure = trained,
    told: Callable[[int, int, Cell], None] = lambda *_: None,
) -> Findings:
    """Run what is not there yet, and keep each run as it ends.

    Args:
        study: what to run.
        out: folder; the runs are kept in `results.json` there.
        command: for the record.
        measure: how a cell is run.
        told: called with how many runs are done, of how many, and which cell is next.
    """
    path = out / "results.json"
    kept = Findings.read(path).runs if path.exists() else []
    known = {(one.row, one.column, one.seed): one for one in kept}
    found = Findings(command)
    jobs = [(cell, seed) for cell in study.cells for seed in study.seeds]
    for number, (cell, seed) in enumerate(jobs):
        told(number, len(jobs), cell)
        key = (cell.row, cell.column, seed)
        found.runs.append(known[key] if key in known else measure(cell, seed))
        found.write(path)
    return found
