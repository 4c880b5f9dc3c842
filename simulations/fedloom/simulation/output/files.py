"""An experiment's output folder: one experiment, every round once, no partial files.

    simulation.json      the state of the simulation, and the format of the folder
    config.toml          the experiment's settings as given
    resolved.json        every setting with its value, defaults included
    environment.json     machine and versions
    metrics.jsonl, .csv  a line for each round, written as it ends
    model.safetensors    the last model
    best.safetensors     the best model by [best], if clients evaluated one
    plots/, report.html  see plots and report

Invariants: a folder with other files is refused before anything is written, and so is one that
another process writes to (a file lock, which ends with its process). After a resumption no round
appears twice.
"""

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from numpy.typing import NDArray

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import dotted, toml
from fedloom.protocol.tensors.container import write_file
from fedloom.simulation.output import words
from fedloom.simulation.output.environment import describe
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.metrics import Metrics

MARKER = "simulation.json"
MODEL, BEST = "model.safetensors", "best.safetensors"
"""The last model, and the best one."""
_RESOLVED = "resolved.json"
_LOCK = ".lock"
_DRAFTS = f".{MARKER}."
_HARMLESS = {_LOCK, ".DS_Store", ".gitkeep", ".gitignore"}
_FORMAT = 1

MAY_DIFFER = ("name", "rounds", "engine", "output", "stop", "precision")
"""Settings that a resumption may change: they change length and speed, not the bits."""


class OutputFolder:
    """The folder that a simulation writes to.

    Attributes:
        path: of the folder, absolute.
        resumed: whether it held rounds of this experiment when it was opened.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Open a folder, or make it.

        Args:
            path: of the folder; need not exist.
            resume: continue the experiment in it, if there is one.

        Raises:
            UsageError: it holds other files, or rounds and `resume` is false, or another process
                writes to it.
        """
        self.path = path.expanduser().absolute()
        self._marker = _inspect(self.path, resume=resume)
        self._make()
        self._lock = _lock(self.path)
        try:
            if not self._marker:
                self._mark(format=_FORMAT, state="started", rounds=0)
            self._metrics = Metrics(self.path)
        except BaseException:
            self._lock.close()
            raise
        self.resumed = bool(self._metrics.records())

    def check(self, resolved: Mapping[str, Any]) -> None:
        """Refuse other settings than those of the rounds in the folder; writes nothing.

        Args:
            resolved: every setting with its value, in plain values.

        Raises:
            UsageError: settings differ that are not among `MAY_DIFFER`.
        """
        path = self.path / _RESOLVED
        if self.resumed and path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            _same(self.path, before, json.loads(_json(resolved)))

    def configure(self, given: str | Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
        """Write the configuration and the environment.

        Args:
            given: the text of the TOML file, or the settings.
            resolved: every setting with its value, in plain values.

        Raises:
            UsageError: as `check`.
        """
        self.check(resolved)
        text = given if isinstance(given, str) else toml.dumps(given)
        write_whole(self.path / "config.toml", text)
        write_whole(self.path / _RESOLVED, _json(resolved))
        write_whole(self.path / "environment.json", _json(describe()))
        self._mark(name=str(resolved.get("name", "")), state="running")

    def note_changes(self, changes: Sequence[str], rounds: int) -> None:
        """Record changes of code, examples or initial values that the user accepted.

        Args:
            changes: in words.
            rounds: done before them.
        """
        if changes:
            noted = {"after_rounds": rounds, "changed": list(changes)}
            self._mark(changes=[*self._marker.get("changes", ()), noted])

    def append(self, record: RoundRecord) -> None:
        """Write a round that has ended; it is flushed at once."""
        self._metrics.append(record)

    def records(self) -> list[RoundRecord]:
        """All rounds written so far, in order."""
        return self._metrics.records()

    def cut(self, after: int) -> list[RoundRecord]:
        """Drop the rounds after a checkpoint; they will be run again.

        Args:
            after: number of the last round to keep; 0 for none.

        Returns:
            The rounds kept.
        """
        records = [record for record in self.records() if record.round <= after]
        self._metrics.rewrite(records)
        return records

    def write_model(
        self,
        params: Mapping[str, NDArray[Any]],
        dtypes: Mapping[str, str] | None = None,
        name: str = MODEL,
    ) -> str:
        """Write a model durably and atomically.

        Args:
            params: arrays by name.
            dtypes: the container's dtypes by name, if they differ from the arrays' dtypes.
            name: of the file.

        Returns:
            The file's SHA-256, lower-case hex.
        """
        return write_file(self.path / name, params, dtypes)

    def finish(self, *, rounds: int, stopped: str = "") -> None:
        """Mark the folder as complete.

        Args:
            rounds: number of rounds in it.
            stopped: why it ended before its last round; empty if it did not.
        """
        self._mark(state="stopped" if stopped else "finished", stopped=stopped, rounds=rounds)

    def close(self) -> None:
        """Close the files and release the lock; may be called more than once."""
        self._metrics.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"The folder {self.path} cannot be made: {error.strerror}. Choose another."
            ) from error

    def _mark(self, **changes: Any) -> None:
        self._marker = {**self._marker, **changes}
        write_whole(self.path / MARKER, _json(self._marker))


def _inspect(path: Path, *, resume: bool) -> dict[str, Any]:
    """The marker of the experiment in a folder; empty for a new or empty folder."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file. Choose a folder to write to.")
    found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if all(name in _HARMLESS or name.startswith(_DRAFTS) for name in found):
        return {}
    marker = _read_marker(path / MARKER)
    if marker is None:
        others = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise UsageError(
            f"{path} is not the folder of a simulation and not empty: it has {others}. Nothing "
            "in it was changed; choose another folder."
        )
    if not resume and _holds_rounds(path):
        raise UsageError(
            f"{path} already holds {_summary(marker)}. Continue it with {words.RESUME}, or choose "
            "another folder."
        )
    return marker


def _holds_rounds(path: Path) -> bool:
    """Whether a round was written: a folder of settings that failed at once may be used again."""
    lines = path / "metrics.jsonl"
    return lines.exists() and lines.stat().st_size > 0


def _read_marker(path: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and marker.get("format") == _FORMAT else None


def _summary(marker: Mapping[str, Any]) -> str:
    name = f"the experiment {marker['name']!r}" if marker.get("name") else "an experiment"
    if marker.get("state") == "finished":
        return f"{name}, finished after {marker.get('rounds', 0)} rounds"
    return f"{name}, not finished"


def _lock(path: Path) -> IO[str]:
    file = (path / _LOCK).open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(
            f"Another simulation uses {path}. Wait until it ends, or choose another folder."
        ) from error
    return file


def _same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    was, is_ = dict(dotted(before)), dict(dotted(now))
    if "sum_bits" in is_:  # folders from before exact sums do not name it, and have those of 64
        was.setdefault("sum_bits", 64)
    for name in sorted(was.keys() | is_.keys()):
        if was.get(name) != is_.get(name) and name.split(".")[0] not in MAY_DIFFER:
            raise UsageError(
                f"The experiment in {path} has {name} = {json.dumps(was.get(name))}, not "
                f"{json.dumps(is_.get(name))}. Restore the setting to resume, or choose another "
                "folder for the new experiment."
            )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
