"""Run the missing cells of a study, and write its report.

The folder of a study:

    results.json   every run, replaced atomically as each run ends
    README.md      the table with remarks
    results.csv    a line for each run
    NAME.png       the table as bars

Invariant: a finished run is not repeated, and no run in the folder is lost.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from fedloom.protocol.errors import UsageError
from fedloom.simulation.studies import picture, table
from fedloom.simulation.studies.study import Cell, Measure, Study, StudyResults, StudyRun
from fedloom.simulation.sweep.process import THREADS

OnRun = Callable[[int, int, StudyRun], None]
"""Called as a run ends: number of finished runs, of all runs, and the run."""


def only(study: Study, patterns: Sequence[str]) -> Study:
    """The rows with these names (* for any text), and the baseline; all rows without a name.

    Raises:
        UsageError: no row has this name.
    """
    names = dict.fromkeys(cell.row for cell in study.cells)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"{pattern!r} is not a {study.about}. Choose from {', '.join(names)}.")
    wanted = (*patterns, study.baseline) if patterns else ("*",)
    chosen = [c for c in study.cells if any(fnmatchcase(c.row, name) for name in wanted)]
    return replace(study, cells=chosen)


def run(
    study: Study,
    folder: Path,
    *,
    command: str = "",
    processes: int = 0,
    on_run: OnRun = lambda *_: None,
) -> StudyResults:
    """Run the missing cells, and store each run as it ends.

    Args:
        study: to run.
        folder: of the results.
        command: for the record.
        processes: runs at a time, each in a process with one thread; 0 to run in this process.
        on_run: called as each run ends.
    """
    kept = list(StudyResults.read(folder).runs)
    jobs = [(cell, seed) for cell in study.cells for seed in study.seeds]
    left = [job for job in jobs if not any(_is_of(one, job) for one in kept)]
    results = StudyResults(command, kept)
    for done, one in enumerate(_measured(study.measure, left, processes), 1):
        key = (one.row, one.column, one.seed)
        kept = [other for other in kept if (other.row, other.column, other.seed) != key]
        results = StudyResults(command, _sorted([*kept, one], jobs))
        kept = list(results.runs)
        results.write(folder)
        on_run(len(jobs) - len(left) + done, len(jobs), one)
    return results


def report(study: Study, results: StudyResults, folder: Path) -> None:
    """Write the table, the runs and the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(table.markdown(study, results), encoding="utf-8")
    (folder / "results.csv").write_text(table.comma_separated(results), encoding="utf-8")
    picture.draw(study, results, folder / f"{study.name}.png")


Job = tuple[Cell, int]


def _is_of(one: StudyRun, job: Job) -> bool:
    return one.is_of(job[0]) and one.seed == job[1]


def _sorted(runs: Sequence[StudyRun], jobs: Sequence[Job]) -> list[StudyRun]:
    """Runs in the order of the jobs; other runs come first."""
    order = {(cell.row, cell.column, seed): place for place, (cell, seed) in enumerate(jobs)}
    return sorted(runs, key=lambda one: order.get((one.row, one.column, one.seed), -1))


def _measured(measure: Measure, jobs: Sequence[Job], processes: int) -> Iterator[StudyRun]:
    if not processes:
        yield from (_timed(measure, *job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with _one_thread(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(_timed, measure, *job) for job in jobs]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that start in this context use one thread, unless the environment sets it."""
    added = {name: "1" for name in THREADS if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _timed(measure: Measure, cell: Cell, seed: int) -> StudyRun:
    begin = time.monotonic()
    one = measure(cell, seed)
    return replace(one, wall_s=round(time.monotonic() - begin, 1), experiment=cell.digest)
