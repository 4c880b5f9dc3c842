"""What the studies of published tables share: their columns, their claims, and the plain loops.

A row of such a study is a setting of the paper; its columns are runs of ours, and with
`--reference` runs of a plain numpy loop on the same data and initial model, with its own batches
and mostly its own cohorts. A claim is a statement of the paper, with what the runs say about it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output.history import Result, RoundRecord
from fedloom.simulation.studies.plain.local_sgd import Client
from fedloom.simulation.studies.plain.softmax import Floats
from fedloom.simulation.studies.study import (
    Cell,
    Claim,
    Column,
    Study,
    StudyResults,
    StudyRun,
    TableEntry,
    finished,
    mean_and_spread,
)
from fedloom.strategies import Params

OURS, REFERENCE = "ours", "reference"


def cells(rows: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """A cell of ours for each row's settings."""
    return [Cell(row=row, column=OURS, settings=settings) for row, settings in rows.items()]


def with_reference(study: Study) -> Study:
    """The study with a cell of the plain loop beside each of ours."""
    both = [(cell, replace(cell, column=REFERENCE)) for cell in study.cells]
    return replace(study, cells=[cell for pair in both for cell in pair])


def beside(
    metric: str,
    title: str,
    paper: Mapping[str, float] | None = None,
    *,
    text: Callable[[TableEntry], str] = mean_and_spread,
) -> list[Column]:
    """Columns of a metric: the paper's, ours, the plain loop's, and ours over the plain loop's.

    Args:
        metric: by name.
        title: of the metric.
        paper: its value by row; None where the paper shows a curve only.
        text: of an entry.
    """

    def published(_: StudyResults, row: str) -> TableEntry | None:
        found = (paper or {}).get(row)
        return None if found is None else TableEntry((found,))

    def ratio(results: StudyResults, row: str) -> TableEntry | None:
        ours, plain = (results.entry(row, name, metric) for name in (OURS, REFERENCE))
        if ours is None or plain is None or not plain.mean:
            return None
        return TableEntry((ours.mean / plain.mean,))

    def entry(column: str) -> Callable[[StudyResults, str], TableEntry | None]:
        return lambda results, row: results.entry(row, column, metric)

    columns = [Column(title=f"{title}, paper", entry=published, text=text, is_drawn=False)]
    return [
        *(columns if paper else []),
        *(
            Column(title=f"{title}, {name}", entry=entry(name), text=text, unit=metric)
            for name in (OURS, REFERENCE)
        ),
        Column(
            title=f"{title}, ours / reference",
            entry=ratio,
            text=lambda e: f"{e.mean:.2f}",
            is_drawn=False,
        ),
    ]


def below(
    results: StudyResults, column: str, metric: str, low: str, high: str
) -> tuple[str, bool] | None:
    """Whether a row's metric is below another's: both means, and the seeds in which it is.

    Returns:
        What was found, and whether it holds in the mean; None without runs of both.
    """
    pair = [
        {run.seed: run.values[metric] for run in results.runs
         if (run.row, run.column) == (row, column) and metric in run.values}
        for row in (low, high)
    ]  # fmt: skip
    seeds = sorted(pair[0].keys() & pair[1].keys())
    if not seeds:
        return None
    means = [sum(found[seed] for seed in seeds) / len(seeds) for found in pair]
    held = sum(pair[0][seed] < pair[1][seed] for seed in seeds)
    words = f"{means[0]:.3g} against {means[1]:.3g}, in {held} of {len(seeds)} seeds"
    return words, means[0] < means[1]


def claim_below(text: str, metric: str, low: str, high: str) -> Claim:
    """The claim that one row's metric is below another's."""
    return Claim(text, lambda results, column: below(results, column, metric, low, high))


def run(experiment: Experiment, cell: Cell) -> Result:
    """Simulate a cell without output.

    Raises:
        KeyboardInterrupt: Ctrl-C: the run is not a result.
        UsageError: it ended early, without a reason to end.
    """
    result = finished(simulate(experiment, show=False))
    if result.stopped:
        raise UsageError(f"{cell.row}, {cell.column} ended early: {result.stopped}.")
    return result


def rounds_to(target: float, accuracies: Iterable[float], cap: int) -> int:
    """The first round with at least this accuracy; `cap` if none of the first `cap` has it."""
    return next(
        (number for number, found in enumerate(islice(accuracies, cap), 1) if found >= target), cap
    )


def simulated_rounds(experiment: Experiment, target: float, cap: int) -> int:
    """`rounds_to` of a simulation that tests every round; one that diverges does not reach it."""

    def on_round(record: RoundRecord, _: Params) -> bool:
        return record.test.get("accuracy", 0.0) >= target or record.round >= cap

    result = finished(simulate(experiment, show=False, on_round=on_round))
    return rounds_to(target, (r.test.get("accuracy", 0.0) for r in result.records), cap)


def clients_of(experiment: Experiment) -> list[Client]:
    """Each client's training examples, flat inputs in float64."""
    examples = experiment.population.examples
    return [flat(examples.x[shard], examples.y[shard]) for shard in experiment.population.shards]


def test_of(experiment: Experiment) -> Client:
    """The test examples, flat inputs in float64."""
    test = experiment.population.test
    if test is None:
        raise UsageError("Expected central test examples, got none. Set data.test above 0.")
    return flat(test.x, test.y)


def flat(x: np.ndarray, y: np.ndarray) -> Client:
    """Inputs (N, D) in float64, and the class numbers."""
    return x.reshape(len(x), -1).astype(np.float64), np.asarray(y, np.int64)


def start_of(experiment: Experiment) -> Floats:
    """The initial logistic regression, as the plain loops take it."""
    state = experiment.model().state_dict()
    return as_plain({name: tensor.numpy() for name, tensor in state.items()})


def as_plain(params: Mapping[str, Any]) -> Floats:
    """A logistic regression's weight and bias as one array (K, D + 1), float64."""
    weight, bias = (np.asarray(value, np.float64) for value in params.values())
    return np.column_stack((weight, bias))


def one_thread() -> None:
    """Compute with one thread: runs share the machine."""
    torch.set_num_threads(1)


def of_cell(
    cell: Cell, seed: int, values: Mapping[str, float], curve: Sequence[tuple[int, float]] = ()
) -> StudyRun:
    """The run of a cell."""
    return StudyRun(row=cell.row, column=cell.column, seed=seed, values=values, curve=curve)
