"""The plain numpy loop beside the 2NN's cells: rounds to the target at each cell's best rate.

`reference.json` has the rounds by cell and seed; it is replaced after each run, and finished runs
are not repeated.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources
from fedloom.simulation.studies.mcmahan2017 import cells
from fedloom.simulation.studies.mcmahan2017.counting import rounds_to
from fedloom.simulation.studies.mcmahan2017.published import CLIENTS, IID, TARGETS, CellSetting
from fedloom.simulation.studies.mcmahan2017.search import SearchResult
from fedloom.simulation.studies.plain import mcmahan2017 as plain

FILE = "reference.json"
SEEDS = (0, 1, 2)
MODEL = "2nn"
"""The plain loop has no convolutions."""

Runs = dict[str, dict[str, float | None]]
"""Rounds by `RATE` and seed, by cell; None for a run that did not reach the target."""


def read(folder: Path) -> Runs:
    """The runs in a folder; empty without the file.

    Raises:
        UsageError: it has another format.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found: Runs = {name: dict(runs) for name, runs in json.loads(path.read_text()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} has no runs of the plain loop: {error}.") from None
    return found


def rounds_of(runs: Runs, name: str, rate: float) -> tuple[float | None, ...]:
    """Rounds of a cell at a rate, by seed."""
    return tuple(value for key, value in runs.get(name, {}).items() if key.startswith(f"{rate:g} "))


def run(
    settings: Sequence[CellSetting],
    found: Mapping[str, SearchResult],
    folder: Path,
    *,
    data: Mapping[str, Any],
    seeds: Sequence[int] = SEEDS,
    on_run: Callable[[str], None] = lambda _: None,
) -> Runs:
    """Run the plain loop at the best rate of each 2NN cell that has one.

    Args:
        settings: the cells.
        found: their results.
        folder: of the file.
        data: more settings of MNIST, such as `folder`.
        seeds: of split, initial weights, cohorts and batches.
        on_run: called with a line after each run.
    """
    runs, loaded = read(folder), None
    folder.mkdir(parents=True, exist_ok=True)
    for setting in settings:
        best = found[setting.name].best if setting.name in found else None
        if setting.model != MODEL or best is None:
            continue
        for seed in seeds:
            key = f"{best.learning_rate:g} seed {seed}"
            if key in runs.setdefault(setting.name, {}):
                continue
            loaded = loaded or _mnist(data)
            rounds = _rounds(setting, best.learning_rate, seed, *loaded)
            runs[setting.name][key] = rounds
            write_whole(folder / FILE, json.dumps(runs, indent=1) + "\n")
            on_run(f"reference {setting.name}, seed {seed}: {rounds}")
    return runs


Labelled = tuple[plain.Array, np.ndarray]


def _mnist(data: Mapping[str, Any]) -> tuple[Labelled, Labelled]:
    given = {name: value for name, value in data.items() if value}
    people = sources.load(source="mnist", clients=1, seed=0, **given)
    assert people.test is not None
    train, test = (
        (np.asarray(part.x, np.float32).reshape(len(part), -1), np.asarray(part.y, np.int64))
        for part in (people.examples, people.test)
    )
    return train, test


def _rounds(
    setting: CellSetting, rate: float, seed: int, train: Labelled, test: Labelled
) -> float | None:
    target = TARGETS[setting.model]
    curve = []
    accuracies = plain.accuracies(
        train, test, np.random.default_rng(seed), rounds=cells.cap_of(setting), clients=CLIENTS,
        cohort=setting.clients, epochs=setting.epochs, batch=setting.batch, rate=rate,
        iid=setting.split == IID,
    )  # fmt: skip
    for number, accuracy in enumerate(accuracies, 1):
        curve.append((number, accuracy))
        if accuracy >= target:
            break
    rounds = rounds_to(curve, target)
    return None if rounds is None else round(rounds, 3)
