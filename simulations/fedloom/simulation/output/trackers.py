"""Metrics for TensorBoard and MLflow, where a person asks for them.

Event files are written by ourselves; MLflow is needed for nothing else, so it is no dependency.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from fedloom.cli.operator.export.mlflow import MLflowRun
from fedloom.cli.operator.export.tensorboard import EventFile
from fedloom.simulation.output.curves import SOURCES, balance
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.words import flat


class Tracker(Protocol):
    """Whoever wants to hear of every round."""

    def append(self, record: RoundRecord) -> None:
        """A round has ended."""

    def close(self) -> None:
        """The simulation has ended, or this process has."""


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """A round's figures as names such as `test/accuracy` and finite values."""
    for source in SOURCES:
        for name, value in getattr(record, source).items():
            if math.isfinite(value):
                yield f"{source}/{name}", float(value)
    for phase, members in record.counts.items():
        yield f"clients/{phase}", float(members)
    yield "clients/accepted", float(record.accepted)
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
            folder: for them.
            before: the last round of an earlier process that is resumed; what it wrote of later
                ones is hidden.
        """
        self._file = EventFile(folder, before=before)

    def append(self, record: RoundRecord) -> None:
        """Write a round's figures."""
        self._file.append(record.round, dict(scalars(record)))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class MLflow:
    """A run at the tracking server, or in the store, that MLFLOW_TRACKING_URI names."""

    def __init__(self, name: str, settings: Mapping[str, Any], *, run_id: str = "") -> None:
        """Begin a run, or go on with one.

        Args:
            name: of the experiment.
            settings: dotted names and values, as the run's parameters.
            run_id: of the run to go on with.

        Raises:
            UsageError: MLflow is not installed, or has no store to write to.
        """
        wish = "[output] mlflow = true"
        self._run = MLflowRun(name, settings, run_id=run_id, wish=wish)
        self.run_id = self._run.run_id

    def append(self, record: RoundRecord) -> None:
        """Log a round's figures."""
        self._run.append(record.round, dict(scalars(record)))

    def close(self) -> None:
        """Say that the run has ended."""
        self._run.close()


def wanted(
    output: Mapping[str, Any],
    folder: Path,
    *,
    name: str,
    settings: Mapping[str, Any],
    before: int = 0,
) -> "Trackers":
    """The trackers that an experiment's [output] asks for.

    Args:
        output: `tensorboard` and `mlflow`, true or false; both are false where left out.
        folder: of the simulation; event files go into its `tensorboard/`, and which run MLflow's
            is into its `mlflow-run.txt`, so that a resumption goes on with it.
        name: of the experiment.
        settings: nested settings in plain values.
        before: the last round of an earlier process that is resumed.

    Raises:
        UsageError: one that is asked for is not installed.
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
    return Trackers(found)


class Trackers:
    """All trackers of a simulation as one; a context manager."""

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def append(self, record: RoundRecord) -> None:
        """Tell every tracker of a round."""
        for tracker in self._trackers:
            tracker.append(record)

    def close(self) -> None:
        """Close every tracker."""
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
