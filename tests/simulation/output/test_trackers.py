"""TensorBoard and MLflow get every round; a missing MLflow is an error."""

import sys
import types
from dataclasses import replace

import pytest

from fedloom.cli.operator.export.tensorboard import read
from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.output import trackers
from support.curve_client import Counter, CurveClient, settings
from support.experiments import experiment, population
from support.histories import history


def test_a_missing_tracker_is_named_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match=r"\[output\] mlflow = true .*pip install mlflow"):
        trackers.MLflow("digits", {})


def test_scalars_are_finite_and_named_by_their_source():
    values = dict(trackers.scalars(history(1, diverged_from=1)[0]))
    assert "test/loss" not in values
    assert values["test/accuracy"] == pytest.approx(0.0775, abs=1e-3)
    assert {"clients/reported", "clients/accepted", "time/virtual_s", "speed/balance"} <= set(
        values
    )


def test_an_mlflow_run_continues_after_a_resumption(monkeypatch, tmp_path):
    calls = []

    class Client:
        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return "7"

        def create_run(self, experiment, *, run_name):
            calls.append("run")
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"run-{len(calls)}"))

        def log_param(self, run_id, key, value):
            calls.append((run_id, key, value))

        def log_batch(self, run_id, *, metrics):
            calls.append((run_id, len(metrics) > 5))

        def set_terminated(self, run_id):
            calls.append((run_id, "ended"))

    mlflow, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    mlflow.MlflowClient, entities.Metric = Client, lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for before in (0, 2):
        with trackers.wanted(
            {"mlflow": True, "tensorboard": False},
            tmp_path,
            name="digits",
            settings={"train": {"epochs": 5}},
            before=before,
        ) as all_of_them:
            all_of_them.append(history(1)[0])
    told = [("run-1", True), ("run-1", "ended")]
    assert calls == ["run", ("run-1", "train.epochs", "5"), *told, *told]


def test_an_error_of_the_mlflow_store_names_the_setting_to_check(monkeypatch):
    def refuse():
        raise OSError("file stores are no more.")

    mlflow = types.ModuleType("mlflow")
    mlflow.MlflowClient = refuse
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", types.ModuleType("mlflow.entities"))
    with pytest.raises(UsageError, match=r"no more\. Check MLFLOW_TRACKING_URI"):
        trackers.MLflow("digits", {})


def test_without_trackers_nothing_is_written(tmp_path):
    with trackers.wanted({}, tmp_path, name="digits", settings={}) as all_of_them:
        all_of_them.append(history(1)[0])
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_every_round(tmp_path):
    with trackers.Trackers([trackers.TensorBoard(tmp_path)]) as all_of_them:
        for record in history(2):
            all_of_them.append(record)
    (path,) = tmp_path.iterdir()
    steps = dict(read(path))
    assert sorted(steps) == [1, 2]
    assert steps[2]["test/accuracy"] == pytest.approx(
        dict(trackers.scalars(history(2)[1]))["test/accuracy"]
    )


def test_the_best_model_is_a_point_of_its_round_once(tmp_path):
    """Also after a resumption; no point before a finite metric."""
    marks = [{"metric": "accuracy", "round": n, "value": n and n / 8} for n in (None, 0, 0, 2, 5)]
    marks.insert(0, None)
    for folder, before, told, rounds in (
        ("new", None, marks, [0, 2, 5]), ("resumed", marks[-2], marks[-2:], [5]),
    ):  # fmt: skip
        with trackers.Trackers([trackers.TensorBoard(tmp_path / folder)], before) as all_of_them:
            for mark in told:
                all_of_them.mark(mark)
        (path,) = (tmp_path / folder).iterdir()
        assert list(read(path)) == [(n, {"best/accuracy": n / 8}) for n in rounds]


def test_a_simulation_tracks_each_model_that_was_the_best(tmp_path):
    """The last point is the best model of the result."""
    described = experiment(client=CurveClient, data=population(sizes=(5, 5), test=0),
                           **settings("5 3 4 2 2"))  # fmt: skip
    described = replace(described, model=Counter, settings={"output": {"tensorboard": True}})
    best = simulate(described, out=tmp_path / "out", show=False).best_model
    paths = (tmp_path / "out" / "tensorboard").iterdir()
    points = [pair for path in paths for pair in read(path) if "best/loss" in pair[1]]
    assert points[-1] == (best["round"], {"best/loss": best["value"]})
    assert [values["best/loss"] for _, values in points] == [5.0, 3.0, 2.0]
