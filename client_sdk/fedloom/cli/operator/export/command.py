"""`fedloom run export`: exports a run's metrics to TensorBoard, MLflow, CSV or JSON lines.

Each ended round is written once, in order: another export to the same place continues after the
last one. CSV and JSON files are rewritten as a whole, because a later round may add a column.
"""

import csv
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from fedloom.cli.common import output
from fedloom.cli.common.best import NAME, best_point
from fedloom.cli.common.options import server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import ACTIVE, run_or_newest
from fedloom.cli.operator.export.mlflow import MLflowRun
from fedloom.cli.operator.export.tensorboard import EventFile, steps
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.settings import dotted

PACE_S = 2.0
PAGE = 500

RUN_TAG, ROUNDS_TAG, BEST_TAG = "fedloom.run", "fedloom.rounds", "fedloom.best_model"
_TIMES = ("opened_at", "deadline_at", "closed_at", "undone_at")
_FACTS = ("number", "kind", "state", "reason", *_TIMES, "accepted", "staleness", "model_out")

Round = Mapping[str, Any]


class Place(Protocol):
    """A destination of an export."""

    def write(self, rounds: Sequence[Round], best: Mapping[str, Any] | None) -> None:
        """Write those of all ended rounds, in order, and the best model if not written before."""

    def close(self) -> None:
        """Release the destination."""


def scalars(one: Round) -> dict[str, float]:
    """A round's finite numbers by name, such as `training/loss`."""
    found: dict[str, Any] = {}
    for kind in ("training", "evaluation"):
        for name, value in ((one[kind] or {}).get("values") or {}).items():
            found[f"{kind}/{name}"] = value
    for name, value in (one["privacy"] or {}).items():
        found[f"privacy/{name}"] = value
    for name, value in (one["clients"] or {}).items():
        found[f"clients/{name}"] = value
    if one.get("underflow") is not None:
        found["sum/underflow"] = one["underflow"]
    if one["closed_at"] is not None:
        found["time/round_s"] = one["closed_at"] - one["opened_at"]
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _counts(one: Round) -> bool:
    return one["state"] == "committed" and one["undone_at"] is None


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._last = max(steps(folder), default=0)
        self._marked = steps(folder, NAME)
        self._file = EventFile(folder)

    def write(self, rounds: Sequence[Round], best: Mapping[str, Any] | None) -> None:
        for one in rounds:
            if one["number"] > self._last and _counts(one):
                self._file.append(one["number"], scalars(one), one["closed_at"])
                self._last = one["number"]
        point = best_point(best)
        if point is not None and point[0] not in self._marked:
            self._file.append(*point)
            self._marked.add(point[0])

    def close(self) -> None:
        self._file.close()


class _MLflow:
    def __init__(self, run: Mapping[str, Any], where: str) -> None:
        uri = where
        if ":" not in where:
            Path(where).mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{Path(where).resolve() / 'mlflow.db'}"
        settings = dict(dotted(run["spec"]))
        self._run = MLflowRun(run["name"], settings, uri=uri, tags={RUN_TAG: run["id"]})
        self._last = int(self._run.tagged(ROUNDS_TAG) or 0)
        self._marked = self._run.tagged(BEST_TAG)

    def write(self, rounds: Sequence[Round], best: Mapping[str, Any] | None) -> None:
        for one in rounds:
            if one["number"] > self._last and _counts(one):
                self._run.append(one["number"], scalars(one), one["closed_at"])
                self._last = one["number"]
                self._run.tag(ROUNDS_TAG, str(self._last))
        point = best_point(best)
        if best is not None and point is not None and best["model"] != self._marked:
            self._run.append(*point)
            self._marked = str(best["model"])
            self._run.tag(BEST_TAG, self._marked)

    def close(self) -> None:
        self._run.close()


class _Csv:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, rounds: Sequence[Round], _: Mapping[str, Any] | None) -> None:
        rows = [{name: one[name] for name in _FACTS} | scalars(one) for one in rounds]
        names = list(dict.fromkeys((*_FACTS, *(name for row in rows for name in row))))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        write_whole(self._path, text.getvalue())

    def close(self) -> None:
        pass


class _Jsonl:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, rounds: Sequence[Round], _: Mapping[str, Any] | None) -> None:
        write_whole(self._path, "".join(json.dumps(one) + "\n" for one in rounds))

    def close(self) -> None:
        pass


def _cell(value: Any) -> Any:
    """A cell; text from clients that a spreadsheet would run as a formula is quoted."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def rounds_of(control: Control, run: str, *, after: int = 0) -> list[Round]:
    """Rounds of a run that have ended, later than `after`, in order."""
    found: list[Round] = []
    before = 0
    while True:
        page = control.get("runs", run, "rounds", limit=PAGE, before=before)
        found += page["rounds"]
        before = page["more"]
        if not before or (found and found[-1]["number"] <= after):
            break
    ended = [one for one in found if one["state"] in ("committed", "abandoned")]
    return [one for one in reversed(ended) if one["number"] > after]


@click.command()
@click.argument("run", required=False)
@click.option("--tensorboard", type=click.Path(path_type=Path), metavar="DIR", help="Event files.")
@click.option("--mlflow", metavar="URI|DIR", help="A tracking server, or a folder for a database.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--jsonl", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--watch", is_flag=True, help="Keep exporting until the run ends.")
@server_options
def export(  # noqa: PLR0917 - a command's options
    run: str | None,
    tensorboard: Path | None,
    mlflow: str | None,
    csv_path: Path | None,
    jsonl: Path | None,
    watch: bool,
    directory: Path,
) -> None:
    """Export the metrics of a run's rounds to TensorBoard, MLflow, CSV or JSON lines.

    Default: the newest run. Exporting to the same place again adds only new rounds.

    \b
    Examples:
      fedloom run export digits --tensorboard logs/digits --watch
      fedloom run export digits --mlflow http://mlflow:5000
      fedloom run export digits --csv digits.csv --jsonl digits.jsonl
    """
    control = Control(directory)
    found = control.get("runs", run_or_newest(control, run))
    places: list[Place] = []
    try:
        if tensorboard is not None:
            places.append(_TensorBoard(tensorboard))
        if mlflow is not None:
            places.append(_MLflow(found, mlflow))
        if csv_path is not None:
            places.append(_Csv(csv_path))
        if jsonl is not None:
            places.append(_Jsonl(jsonl))
        if not places:
            raise UsageError("Give at least one of --tensorboard, --mlflow, --csv and --jsonl.")
        rounds = _copy(control, found["id"], places, watch=watch)
    except OSError as error:
        raise UsageError(f"Cannot write the export: {error}.") from error
    finally:
        for place in places:
            place.close()
    document = {"run": found["id"], "rounds": rounds}
    output.emit_text(document, f"{rounds} rounds of {found['id']} are exported.")


def _copy(control: Control, run: str, places: Sequence[Place], *, watch: bool) -> int:
    rounds: list[Round] = []
    while True:
        try:
            # Read the run before the rounds: if it has ended, the rounds are complete.
            now = control.get("runs", run)
            is_active = now["state"] in ACTIVE
            last = rounds[-1]["number"] if rounds else 0
            new = rounds_of(control, run, after=last)
        except UnavailableError:
            if not watch or not rounds:
                raise
            time.sleep(PACE_S)  # the server may be restarting
            continue
        rounds += new
        if new or not watch or not is_active:
            for place in places:
                place.write(rounds, now["best"])
        if not watch or not is_active:
            return len(rounds)
        time.sleep(PACE_S)
