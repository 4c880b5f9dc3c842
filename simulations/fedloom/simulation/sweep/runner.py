"""Run a sweep: several trials at once, each in its own process.

One thread starts processes, reads their rounds, prunes, and writes the study. An interrupt ends the
running trials at once; the study is then as if they had not begun.
"""

import fcntl
import selectors
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from optuna.trial import Trial

from fedloom.protocol.errors import UsageError
from fedloom.simulation.output import words
from fedloom.simulation.sweep import space, trial
from fedloom.simulation.sweep.objective import ObjectiveMeter
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, PRUNED, SweepResult, TrialRow
from fedloom.simulation.sweep.process import TrialProcess
from fedloom.simulation.sweep.rounds import RoundsFile
from fedloom.simulation.sweep.settings import Sweep
from fedloom.simulation.sweep.study import TrialStore

ALIKE = 5
"""If so many first trials fail for the same reason, the sweep ends."""


class SweepWatcher(Protocol):
    """Receives the events of a sweep."""

    def began(self, rows: tuple[TrialRow, ...], num_trials: int) -> None:
        """The sweep starts, or continues after `rows`."""

    def started(self, number: int, parameters: dict[str, Any]) -> None:
        """A trial starts."""

    def advanced(self, number: int, rounds: int, value: float | None) -> None:
        """A trial has trained a round; `value` is its metric."""

    def ended(self, row: TrialRow) -> None:
        """A trial ended."""


class NoWatcher:
    """A watcher that does nothing."""

    def began(self, rows: tuple[TrialRow, ...], num_trials: int) -> None:
        """Do nothing."""

    def started(self, number: int, parameters: dict[str, Any]) -> None:
        """Do nothing."""

    def advanced(self, number: int, rounds: int, value: float | None) -> None:
        """Do nothing."""

    def ended(self, row: TrialRow) -> None:
        """Do nothing."""


def run(
    sweep: Sweep,
    folder: Path,
    *,
    jobs: int = 1,
    keep: bool = False,
    retry_failed: bool = False,
    watcher: SweepWatcher | None = None,
    simulate: str = trial.SIMULATE,
) -> SweepResult:
    """Run a sweep, or the missing trials of an interrupted one.

    Args:
        sweep: the search.
        folder: of the study and all output; made if missing.
        jobs: trials at once.
        keep: also keep each trial's output folder.
        retry_failed: run failed trials again.
        watcher: receives events.
        simulate: `MODULE:NAME` of the function for one trial; see `trial.simulate_trial`.

    Raises:
        UsageError: the folder belongs to another sweep, or is in use; or the first five trials
            all failed for the same reason.
        KeyboardInterrupt: the sweep was interrupted; it can be continued.
    """
    if jobs < 1:
        raise UsageError(f"Expected at least one job, got {jobs}.")
    sweep.own  # noqa: B018 - read now, to refuse a missing experiment at once
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        study = TrialStore(sweep, folder)
        try:
            if retry_failed:
                study.retry_failed()
            Runner(study, folder, keep, watcher or NoWatcher(), simulate).run(jobs)
        finally:
            study.close()
    return SweepResult(sweep=sweep, folder=folder, rows=study.rows, num_trials=study.num_slots)


def read(sweep: Sweep, folder: Path) -> SweepResult:
    """The result of a sweep in a folder so far.

    Raises:
        UsageError: the folder belongs to another sweep.
    """
    with _locked(folder):
        study = TrialStore(sweep, folder)
        study.close()
    return SweepResult(sweep=sweep, folder=folder, rows=study.rows, num_trials=study.num_slots)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"Another sweep uses {folder}. Wait until it ends, or choose another --out."
            ) from None
        yield


@dataclass(slots=True)
class _Running:
    slot: int
    trial: Trial
    settings: dict[str, Any]
    process: TrialProcess
    meter: ObjectiveMeter
    rounds: RoundsFile
    trained: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    reached: bool = False
    pruned: bool = False
    last_reason: str = ""


@dataclass(slots=True)
class Runner:
    """Runs the missing trials of a study.

    Attributes:
        study: the trials.
        folder: for logs, curves and, if kept, outputs.
        keep: whether trials write their complete output.
        watcher: receives events.
        simulate: `MODULE:NAME` of the function for one trial.
    """

    study: TrialStore
    folder: Path
    keep: bool
    watcher: SweepWatcher
    simulate: str
    _running: dict[int, _Running] = field(default_factory=dict)
    _failures: list[str] | None = field(default_factory=list)

    def run(self, jobs: int) -> None:
        """Run all missing trials, `jobs` at once."""
        waiting = self.study.missing()
        self.watcher.began(self.study.rows, self.study.num_slots)
        (self.folder / "trials").mkdir(exist_ok=True)
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or self._running:
                    while waiting and len(self._running) < jobs:
                        self._start(waiting.pop(0), selector)
                    for key, _ in selector.select() if self._running else ():
                        self._receive(key.data, selector)
            finally:
                for running in self._running.values():
                    running.process.terminate()
                for running in self._running.values():
                    running.process.end()
                    running.rounds.close()

    def _start(self, slot: int, selector: selectors.BaseSelector) -> None:
        sweep = self.study.sweep
        sweep.check_unchanged()
        drawn = self.study.start(slot)
        name = self.folder / "trials" / f"{slot + 1:04d}"
        parameters = space.decode(sweep.parameters, drawn.params)
        self.watcher.started(slot + 1, parameters)
        try:
            settings = sweep.settings(drawn.params, self.study.place(slot).repeat)
        except UsageError as error:
            self._end(slot, drawn, self._row(slot, drawn, {}, FAILED, None, reason=str(error)))
            return
        experiment = sweep.experiment
        order = {
            "run": self.simulate,
            "experiment": str(experiment) if isinstance(experiment, Path) else experiment,
            "settings": settings,
            "out": str(name) if self.keep else None,
        }
        if self.keep:  # of an interrupted trial
            shutil.rmtree(name, ignore_errors=True)
        process = TrialProcess(order, name.with_suffix(".log"))
        meter, rounds = ObjectiveMeter(sweep.objective), RoundsFile(name.with_suffix(".jsonl"))
        running = _Running(slot, drawn, settings, process, meter, rounds)
        self._running[slot] = running
        selector.register(process, selectors.EVENT_READ, running)

    def _receive(self, running: _Running, selector: selectors.BaseSelector) -> None:
        for message in running.process.messages():
            if "round" in message:
                self._advance(running, message["round"])
                continue
            selector.unregister(running.process)
            running.process.close()
            running.rounds.close()
            del self._running[running.slot]
            self._end(running.slot, running.trial, self._judge(running, message))
            return

    def _advance(self, running: _Running, record: dict[str, Any]) -> None:
        running.rounds.add(record)
        running.trained = max(running.trained, int(record["trained"]))
        running.bytes_down += record["bytes_down"]
        running.bytes_up += record["bytes_up"]
        running.last = record
        running.last_reason = record.get("reason") or running.last_reason
        measured = running.meter.add(record)
        if measured is not None:
            signal = self.study.sweep.objective.signal(measured)
            running.reached = running.meter.reached is not None
            running.pruned = not running.reached and self.study.report(
                running.trial, running.trained, signal
            )
        running.process.answer(stop=running.pruned or running.reached)
        self.watcher.advanced(running.slot + 1, running.trained, measured)

    def _judge(self, running: _Running, message: dict[str, Any]) -> TrialRow:
        value = running.meter.value()
        if "failed" in message:
            state, reason = FAILED, message["failed"]
        elif value is None:
            metric, why = self.study.sweep.objective.metric, running.last_reason
            state = FAILED
            reason = f"{metric} was never measured" + (f"; the last round: {why}" if why else "")
        elif running.pruned:
            state, reason = PRUNED, self._last_value(running.meter)
            value = None if running.meter.objective.target is not None else value
        else:
            state, reason = FINISHED, "diverged" if running.meter.diverged else ""
        row = self._row(
            running.slot, running.trial, running.settings, state, value, reason=reason
        )  # fmt: skip
        return replace(
            row,
            rounds=running.trained,
            seconds=round(running.process.elapsed_s, 3),
            wall_s=running.last.get("wall_s", 0.0),
            virtual_s=running.last.get("virtual_s"),
            bytes_down=running.bytes_down,
            bytes_up=running.bytes_up,
        )

    @staticmethod
    def _last_value(meter: ObjectiveMeter) -> str:
        """The last metric of a pruned trial, if its value is not the metric."""
        if meter.objective.target is None or meter.last is None:
            return ""
        name = meter.objective.metric.rpartition(".")[2]
        return f"at {name} {words.metric(name, meter.last)}"

    def _row(
        self, slot: int, drawn: Trial, settings: dict[str, Any], state: str, value: float | None,
        *, reason: str = "",
    ) -> TrialRow:  # fmt: skip
        sweep = self.study.sweep
        return TrialRow(
            trial=slot + 1,
            point=self.study.place(slot).point + 1,
            state=state,
            value=value,
            parameters=space.decode(sweep.parameters, drawn.params),
            derived={name: settings[name] for name in sweep.derived if name in settings},
            settings=settings,
            reason=reason,
        )

    def _end(self, slot: int, drawn: Trial, row: TrialRow) -> None:
        self.study.end(drawn, slot, row)
        self.watcher.ended(row)
        if row.state != FAILED:
            self._failures = None
        elif self._failures is not None:
            self._failures.append(row.reason)
            self._check_failures(self._failures)

    @staticmethod
    def _check_failures(failures: list[str]) -> None:
        """End the sweep if all trials so far failed for the same reason."""
        if len(failures) >= ALIKE and len(set(failures)) == 1:
            raise UsageError(
                f"The first {ALIKE} trials failed for the same reason: {failures[0]} Fix it, then "
                "--retry-failed runs them again."
            )
