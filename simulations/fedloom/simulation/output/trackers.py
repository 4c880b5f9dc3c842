"""Metrics for TensorBoard and MLflow, if [output] asks for them.

Event files are written without TensorFlow; MLflow is no dependency and must be installed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from fedloom.cli.common.best import best_point
from fedloom.cli.operator.export.mlflow import MLflowRun
from fedloom.cli.operator.export.tensorboard import EventFile
from fedloom.simulation.output.curves import SOURCES, balance
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.words import flat


class Tracker(Protocol):
    """Receives every round."""

    def append(self, record: RoundRecord) -> None:
        """Record a round that has ended."""

    def mark(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record a model that is the best from now on."""

    def close(self) -> None:
        """End the tracking in this process."""


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """A round's finite values with names such as `test/accuracy`."""
    for source in SOURCES:
        for name, value in getattr(record, source).items():
            if math.isfinite(value):
                yield f"{source}/{name}", float(value)
    for phase, members in record.counts.items():
        yield f"clients/{phase}", float(members)
    yield "clients/accepted", float(record.accepted)
    yield "traffic/bytes_down", float(record.bytes_down)
    yield "traffic/bytes_up", float(record.bytes_up)
    for name, value in (
        ("traffic/total_bytes", record.total_bytes),
        ("work/train_passes", record.train_passes),
        ("work/eval_passes", record.eval_passes),
    ):
        if value is not None:
            yield name, float(value)
    yield "speed/clients_per_s", record.clients_per_s
    yield "speed/round_wall_s", record.round_wall_s
    if (even := balance(record)) is not None:
        yield "speed/balance", even
    if record.virtual_s is not None:
        yield "time/virtual_s", record.virtual_s


class TensorBoard:
    """Event files, for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path, *, before: int = 0) -> None:
        """Open event files.

        Args:
            folder: for the files.
            before: the last round of a resumed simulation; its later rounds are hidden.
        """
        self._file = EventFile(folder, before=before)

    def append(self, record: RoundRecord) -> None:
        """Write a round's values."""
        self._file.append(record.round, dict(scalars(record)))

    def mark(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the best model's value at the round that made it."""
        self._file.append(step, scalars)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class MLflow:
    """A run at the tracking server or store of MLFLOW_TRACKING_URI."""

    def __init__(self, name: str, settings: Mapping[str, Any], *, run_id: str = "") -> None:
        """Begin a run, or continue that of an id; the settings (by dotted name) are its parameters.

        Raises:
            UsageError: MLflow is not installed, or has no store to write to.
        """
        wish = "[output] mlflow = true"
        self._run = MLflowRun(name, settings, run_id=run_id, wish=wish)
        self.run_id = self._run.run_id

    def append(self, record: RoundRecord) -> None:
        """Log a round's values."""
        self._run.append(record.round, dict(scalars(record)))

    def mark(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log the best model's value at the round that made it."""
        self._run.append(step, scalars)

    def close(self) -> None:
        """Mark the run as ended."""
        self._run.close()


def wanted(
    output: Mapping[str, Any],
    folder: Path,
    *,
    name: str,
    settings: Mapping[str, Any],
    before: int = 0,
    best: Mapping[str, Any] | None = None,
) -> "Trackers":
    """The trackers that an experiment's [output] asks for.

    Args:
        output: `tensorboard` and `mlflow`, true or false; default false.
        folder: of the simulation; event files go into its `tensorboard/`, the id of MLflow's run
            into its `mlflow-run.txt`, so that a resumption continues it.
        name: of the experiment.
        settings: nested settings in plain values.
        before: the last round of a resumed simulation; 0 for a new one.
        best: the mark of its best model then; see `fedloom.server.planning.best.mark`.

    Raises:
        UsageError: a requested tracker is not installed.
    """
    found: list[Tracker] = []
    if output.get("tensorboard"):
        found.append(TensorBoard(folder / "tensorboard", before=before))
    if output.get("mlflow"):
        note = folder / "mlflow-run.txt"
        run_id = note.read_text(encoding="utf-8").strip() if before and note.exists() else ""
        tracker = MLflow(name, dict(flat(settings)), run_id=run_id)
        note.write_text(tracker.run_id + "\n", encoding="utf-8")
        found.append(tracker)
    return Trackers(found, best)


class Trackers:
    """All trackers of a simulation as one; a context manager."""

    def __init__(
        self, trackers: Iterable[Tracker] = (), best: Mapping[str, Any] | None = None
    ) -> None:
        self._trackers = list(trackers)
        self._best = best_point(best)

    def append(self, record: RoundRecord) -> None:
        """Pass a round to every tracker."""
        for tracker in self._trackers:
            tracker.append(record)

    def mark(self, best: Mapping[str, Any] | None) -> None:
        """Pass the best model to every tracker, if it is another one than before."""
        point = best_point(best)
        if point is not None and point != self._best:
            self._best = point
            for tracker in self._trackers:
                tracker.mark(*point)

    def close(self) -> None:
        """Close every tracker."""
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
