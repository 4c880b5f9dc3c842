"""From cells to results: simulations side by side, each in a process with one thread."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.papers.robustness.cells import Cell
from fedloom.simulation.workers.setup import cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a cell gave.

    Attributes:
        rule: of the cell.
        attack: of the cell.
        seed: of the cell.
        rounds: that were committed.
        accuracy: of the last model on the test examples.
        stopped: why it ended early; empty where it did not.
        wall_s: seconds that it took.
    """

    rule: str
    attack: str
    seed: int
    rounds: int
    accuracy: float
    stopped: str
    wall_s: float

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def found(cell: Cell) -> Found:
    """Run one cell, here."""
    begin = time.perf_counter()
    result = simulate(config.load(cell.settings()), show=False)
    tested = [record for record in result.records if record.test]
    return Found(
        rule=cell.rule,
        attack=cell.attack,
        seed=cell.seed,
        rounds=len(tested),
        accuracy=tested[-1].test["accuracy"] if tested else 0.0,
        stopped=result.stopped,
        wall_s=time.perf_counter() - begin,
    )


def run(
    cells: Sequence[Cell], *, workers: int | None, done: Callable[[Found], None]
) -> list[Found]:
    """Run cells.

    Args:
        cells: which.
        workers: processes; as many as cores where left out.
        done: told of each as it ends.
    """
    results: dict[Cell, Found] = {}
    with _pool(workers or cores()) as pool:
        waiting = {pool.submit(found, cell): cell for cell in cells}
        for future in as_completed(waiting):
            results[waiting[future]] = future.result()
            done(results[waiting[future]])
    return [results[cell] for cell in cells]


@contextmanager
def _pool(size: int) -> Iterator[ProcessPoolExecutor]:
    """Processes whose arithmetic takes one thread each."""
    context = multiprocessing.get_context("spawn")
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = ProcessPoolExecutor(size, mp_context=context)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
