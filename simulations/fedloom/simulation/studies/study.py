"""A study: experiments in rows and columns, run with several seeds, and their runs.

`results.json` contains the runs. A run has the digest of its experiment, so that a run of other
settings never counts.
"""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import merged
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.output.history import INTERRUPTED, Result

RESULTS = "results.json"
OVER_SEEDS = "{over_seeds}"
"""In a study's note: what its means are; see `words.over_seeds`."""
COMMITTED = Path(__file__).parents[3] / "results"
"""Results in the repository, one folder per study; not in an installed package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One experiment of a study.

    Attributes:
        row: the compared variant, such as the strategy.
        column: the condition.
        settings: of the experiment, as in its file, without the seed.
    """

    row: str
    column: str
    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of the settings, without paths of this machine."""
        text = json.dumps(without_paths(self.settings), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """A cell, run with one seed.

    Attributes:
        row: of its cell.
        column: of its cell.
        seed: of data, model and cohorts.
        values: by name, such as `accuracy` and `loss` on the test examples at the end.
        curve: test accuracy by training round: (round, accuracy).
        stopped: why it ended early; empty if it did not.
        wall_s: its seconds.
        experiment: the digest of its cell; empty in runs of older versions.
    """

    row: str
    column: str
    seed: int
    values: Mapping[str, float]
    curve: Sequence[tuple[int, float]] = ()
    stopped: str = ""
    wall_s: float = field(default=0.0, compare=False)
    experiment: str = ""

    def is_of(self, cell: Cell) -> bool:
        """Whether this is a run of the cell, with the cell's settings."""
        here = (self.row, self.column) == (cell.row, cell.column)
        return here and self.experiment in ("", cell.digest)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One entry of a table.

    Attributes:
        values: one per seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The sample standard deviation over the seeds, n - 1; 0 for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class StudyResults:
    """Runs of a study.

    Attributes:
        command: that produced them.
        runs: in the order of the study.
    """

    command: str = ""
    runs: Sequence[StudyRun] = ()

    def entry(self, row: str, column: str, metric: str) -> TableEntry | None:
        """A metric of one cell; None if no run has it."""
        values = tuple(
            run.values[metric]
            for run in self.runs
            if (run.row, run.column) == (row, column) and metric in run.values
        )
        return TableEntry(values) if values else None

    def write(self, folder: Path) -> None:
        """Replace a folder's results; the file has a line for each run."""
        folder.mkdir(parents=True, exist_ok=True)
        runs = ",\n".join(json.dumps(asdict(run)) for run in self.runs)
        text = f'{{"command": {json.dumps(self.command)}, "runs": [\n{runs}\n]}}\n'
        write_whole(folder / RESULTS, text)

    @classmethod
    def read(cls, folder: Path) -> "StudyResults":
        """Read the file of `write`; no runs if it is missing.

        Raises:
            UsageError: the file has another format.
        """
        path = folder / RESULTS
        if not path.exists():
            return cls()
        try:
            note = json.loads(path.read_text("utf-8"))
            runs = [
                {**run, "curve": [tuple(point) for point in run["curve"]]} for run in note["runs"]
            ]
            return cls(note["command"], [StudyRun(**run) for run in runs])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is not a study's results ({error!r}). Choose another folder."
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        title: its title.
        entry: of a row; None for a gap.
        text: of an entry.
        is_drawn: whether the picture has a panel for it.
        unit: columns of one unit have the same scale in the picture.
    """

    title: str
    entry: Callable[[StudyResults, str], TableEntry | None]
    text: Callable[[TableEntry], str]
    is_drawn: bool = True
    unit: str = ""


def mean_and_spread(entry: TableEntry) -> str:
    """`0.912 ± 0.011`; of one run without the spread."""
    return f"{entry.mean:.3f}" + (f" ± {entry.spread:.3f}" if len(entry.values) > 1 else "")


def metric_column(
    column: str, metric: str, title: str = "", text: Callable[[TableEntry], str] = mean_and_spread
) -> Column:
    """One metric of one column of cells.

    Args:
        column: of the cells.
        metric: by name.
        title: default: the column's name.
        text: of an entry.
    """
    return Column(
        title=title or column,
        entry=lambda results, row: results.entry(row, column, metric),
        text=text,
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of a paper, and what the runs of a column say about it.

    Attributes:
        text: the statement, with its place in the paper.
        check: of the results and a column of cells: what was found, and whether it agrees; None
            without the runs.
    """

    text: str
    check: Callable[[StudyResults, str], tuple[str, bool] | None]


Measure = Callable[[Cell, int], StudyRun]
"""Runs a cell with a seed. A module-level function, so that other processes can call it."""


def at_the_end(cell: Cell, seed: int) -> StudyRun:
    """Simulate a cell; its values are those of the last test.

    Raises:
        UsageError: nothing was tested.
    """
    run = at_the_end_or_zero(cell, seed)
    if not run.curve:
        raise UsageError(f"{cell.row}, {cell.column} ended without a test: {run.stopped!r}.")
    return run


def at_the_end_or_zero(cell: Cell, seed: int) -> StudyRun:
    """Like `at_the_end`; a model that diverged before its first test has an accuracy of 0."""
    result = finished(simulate(config.load({**cell.settings, "seed": seed}), show=False))
    tests = [(record.trained, record.test) for record in result.records if record.test]
    epsilon = result.records[-1].epsilon if result.records else None
    return StudyRun(
        row=cell.row,
        column=cell.column,
        seed=seed,
        values={
            **(tests[-1][1] if tests else {"accuracy": 0.0}),
            **({} if epsilon is None else {"epsilon": epsilon}),
        },
        curve=[(number, test["accuracy"]) for number, test in tests if "accuracy" in test],
        stopped=result.stopped,
    )


def finished(result: Result) -> Result:
    """Return the result of a simulation that was not interrupted.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM ended it, so it is not a run of its cell.
    """
    if result.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study.

    Attributes:
        name: of its command and its files.
        title: of its table and its picture.
        about: name of the rows, such as "strategy".
        cells: in the order of the table.
        seeds: of each cell.
        metric: of the table.
        measure: runs a cell.
        columns: the table's columns; default: `metric` for each column of the cells.
        as_json: the output of `--json`; default: the table.
        baseline: a row that `--only` always includes; empty for none.
        in_processes: whether runs use one process each by default.
        note: description of the entries, with `OVER_SEEDS` in it.
        remarks: below the table, in Markdown.
        claims: of the paper whose table it repeats, checked against the runs.
    """

    name: str
    title: str
    about: str
    cells: Sequence[Cell]
    seeds: Sequence[int]
    metric: str = "accuracy"
    measure: Measure = at_the_end
    columns: Callable[[StudyResults], Sequence[Column]] | None = None
    as_json: Callable[[StudyResults], list[dict[str, Any]]] | None = None
    baseline: str = ""
    in_processes: bool = False
    note: str = ""
    remarks: str = ""
    claims: Sequence[Claim] = ()


def without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without paths of this machine."""
    kept = merged(settings, {})
    for name in ("folder", "download"):
        kept.get("data", {}).pop(name, None)
    return kept
