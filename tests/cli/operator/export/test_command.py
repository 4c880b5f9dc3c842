"""`fedloom run export` against a real API."""

import csv
import json
import sys
import threading
import time
import types
from typing import ClassVar

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.cli.operator.export import command
from fedloom.cli.operator.export.tensorboard import PATTERN, read
from support.door import Door
from support.modules import like


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A server that FEDLOOM_DIR names."""
    monkeypatch.setenv("FEDLOOM_DIR", str(tmp_path / "state"))
    with Door(tmp_path / "state") as door:
        yield door


@pytest.fixture
def story(door, tmp_path):
    """A run with two committed rounds and an abandoned one between them."""
    run = door.submit(tmp_path)
    commit(door, run, 1, 0.5)
    row = _row(run, 2)
    door.contexts.ledger.open_round(row, [])
    door.contexts.ledger.abandon_round(run, 2, "=quorum not reached", "quorum")
    commit(door, run, 3, 0.25)
    return run


def _row(run, number):
    times = {"opened_at": 1000.0 * number, "deadline_at": 1000.0 * number + 60}
    return {"run": run, "number": number, "kind": "train", "model_in": "a" * 64, **times}


def commit(door, run, number, loss, best=None):
    ledger = door.contexts.ledger
    ledger.open_round(_row(run, number), [])
    ledger.close_round(run, number)
    values = {"loss": loss, "nan": float("nan")}
    result = {
        "model_out": f"{number:064x}", "strategy_state": None, "counts": True, "trained": True,
        "training": {"num_examples": 10, "values": values}, "evaluation": {},
    }  # fmt: skip
    if best is not None:
        mark = {"metric": "loss", "mode": "min", "value": loss, "measured_in": number}
        result["best"] = {**mark, "round": best, "stale": 0, "patience": 0}
    ledger.commit_round(run, number, result, 100)


def _export(*args, code=0):
    result = CliRunner().invoke(main, ("run", "export", *args))
    assert result.exit_code == code, result.output
    return result


def _steps(folder):
    return [(step, values["training/loss"]) for path in sorted(folder.glob(PATTERN))
            for step, values in read(path) if "training/loss" in values]  # fmt: skip


def test_tensorboard_gets_committed_rounds_once(door, story, tmp_path):
    """A second export adds only the new rounds."""
    logs = tmp_path / "logs"
    assert "3 rounds" in _export(story, "--tensorboard", str(logs)).stdout
    assert _steps(logs) == [(1, 0.5), (3, 0.25)]
    commit(door, story, 4, 0.125)
    _export(story, "--tensorboard", str(logs))
    assert sorted(_steps(logs)) == [(1, 0.5), (3, 0.25), (4, 0.125)]
    (first, *_) = [values for path in logs.glob(PATTERN) for _, values in read(path)]
    assert {"training/loss", "clients/selected", "time/round_s"} <= set(first)
    assert "training/nan" not in first


def _best(folder):
    return [(step, values["best/loss"]) for path in sorted(folder.glob(PATTERN))
            for step, values in read(path) if "best/loss" in values]  # fmt: skip


def test_the_best_model_is_a_point_of_its_round(door, story, tmp_path):
    """Once; a later export adds the next best one, and then the rounds go on."""
    logs = tmp_path / "logs"
    for number, best, found in ((4, 3, [3]), (5, 3, [3]), (6, 5, [3, 5])):
        commit(door, story, number, 1 / number, best)
        for _ in range(2):
            _export(story, "--tensorboard", str(logs))
        assert [step for step, _ in _best(logs)] == found
    assert _best(logs)[0][1] == 0.25
    assert sorted(step for step, _ in _steps(logs)) == [1, 3, 4, 5, 6]


def test_csv_and_jsonl_have_every_round(story, tmp_path):
    """Abandoned rounds have a reason, which is quoted so that it is not a formula."""
    table, lines = tmp_path / "a.csv", tmp_path / "a.jsonl"
    _export(story, "--csv", str(table), "--jsonl", str(lines), "--json")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(r["number"], r["state"], r["training/loss"]) for r in rows] == [
        ("1", "committed", "0.5"),
        ("2", "abandoned", ""),
        ("3", "committed", "0.25"),
    ]
    assert rows[1]["reason"] == "'=quorum not reached"
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [one["number"] for one in told] == [1, 2, 3]
    assert told[1]["reason"] == "=quorum not reached"
    assert not list(tmp_path.glob(".a.*"))


@pytest.mark.long
def test_watch_exports_until_the_run_ends(door, story, tmp_path, monkeypatch):
    """New rounds are exported as they end, including the last."""
    paces, before = [], set(threading.enumerate())

    def pace(_):
        paces.append(_steps(tmp_path / "logs"))
        if len(paces) == 1:
            commit(door, story, 4, 0.125)
        else:
            commit(door, story, 5, 0.0625)
            door.contexts.ledger.set_run_state(story, "finished", "", ended=True)

    monkeypatch.setattr(command, "time", like(time, sleep=pace))
    _export(story, "--tensorboard", str(tmp_path / "logs"), "--watch")
    assert [len(steps) for steps in paces] == [2, 3]
    assert _steps(tmp_path / "logs")[-1] == (5, 0.0625)
    assert len(set(threading.enumerate()) - before) < 10


class _Store:
    """A fake MLflow client with one store per URI."""

    stores: ClassVar = {}

    def __init__(self, uri):
        self.store = self.stores.setdefault(uri, {"tags": {}, "metrics": [], "params": {}})

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "7"

    def search_runs(self, experiments, wanted, max_results):
        known = self.store["tags"].get("fedloom.run")
        found = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))
        return [found] if known and f"'{known}'" in wanted else []

    def create_run(self, experiment, *, run_name):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

    def set_tag(self, run_id, name, value):
        self.store["tags"][name] = value

    def get_run(self, run_id):
        return types.SimpleNamespace(data=types.SimpleNamespace(tags=self.store["tags"]))

    def log_param(self, run_id, key, value):
        assert key not in self.store["params"]
        self.store["params"][key] = value

    def log_batch(self, run_id, *, metrics):
        self.store["metrics"] += [(m[0], m[3], m[1]) for m in metrics if "loss" in m[0]]

    def set_terminated(self, run_id):
        pass


@pytest.mark.long
def test_an_mlflow_run_is_found_again_by_its_tag(door, story, tmp_path, monkeypatch):
    """A second export continues the same MLflow run."""
    mlflow, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    stores = _Store.stores = {}
    mlflow.MlflowClient, entities.Metric = _Store, lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    _export(story, "--mlflow", "http://mlflow:5000")
    commit(door, story, 4, 0.125, best=3)
    for _ in range(2):
        _export(story, "--mlflow", "http://mlflow:5000")
    store = stores["http://mlflow:5000"]
    told = [("training/loss", 1, 0.5), ("training/loss", 3, 0.25), ("training/loss", 4, 0.125)]
    assert store["metrics"] == [*told, ("best/loss", 3, 0.125)]
    tags = {"fedloom.run": story, "fedloom.rounds": "4", "fedloom.best_model": f"{3:064x}"}
    assert store["tags"] == tags
    assert store["params"]["cohort.goal"] == "2"
    _export(story, "--mlflow", str(tmp_path / "ml"))
    assert f"sqlite:///{tmp_path}/ml/mlflow.db" in stores


def test_a_writable_destination_is_required(story, tmp_path):
    """Exit 2 with the problem."""
    assert "--tensorboard" in _export(story, code=2).stderr
    said = _export(story, "--csv", str(tmp_path / "no" / "a.csv"), code=2).stderr
    assert "No such file" in said
