"""Sweeps from TOML."""

import tomllib

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep import settings
from fedloom.simulation.sweep.reading import read

WHOLE = """
experiment = "experiment.toml"
metric = "loss"
algorithm = "tpe"
trials = 7
repeats = 2
seed = 5
[pruner]
name = "asha"
factor = 4
[parameters]
"train.batch_size" = [8, 32]
"train.epochs" = { min = 1, max = 4 }
rounds = 3
[variables]
scaled = [0, 1]
[derived]
"train.learning_rate" = "0.05 * (train.batch_size / 8) ** scaled"
"""


def parse(text, **more):
    return settings.parse({**tomllib.loads(text), **more})


@pytest.fixture
def file(tmp_path):
    (tmp_path / "experiment.toml").write_text('name = "e"\nseed = 40\n')
    path = tmp_path / "some.toml"
    path.write_text(WHOLE)
    return path


def test_a_sweep_file_is_read(file):
    sweep = read(file)
    assert (sweep.name, sweep.algorithm, sweep.trials, sweep.seed) == ("some", "tpe", 7, 5)
    assert sweep.objective.direction == "minimize"
    assert (sweep.pruner.name, sweep.pruner.factor) == ("asha", 4)
    assert sweep.experiment == file.parent / "experiment.toml"
    assert [p.name for p in sweep.parameters] == [
        "train.batch_size", "train.epochs", "rounds", "scaled",
    ]  # fmt: skip
    assert sweep.constants == {"rounds"}


def test_settings_of_a_trial_follow_from_its_parameters(file):
    drawn = {"train.batch_size": 32, "train.epochs": 2, "rounds": 3, "scaled": 1}
    assert read(file).settings(drawn, repeat=1) == {
        "train.batch_size": 32,
        "train.epochs": 2,
        "rounds": 3,
        "train.learning_rate": pytest.approx(0.2),
        "seed": 6,
        "engine.workers": 1,
    }


def test_without_a_seed_the_experiment_keeps_its_seed(file):
    file.write_text(WHOLE.replace("seed = 5", ""))
    drawn = {"train.batch_size": 8, "train.epochs": 1, "rounds": 3, "scaled": 0}
    assert read(file).settings(drawn, repeat=1)["seed"] == 41
    file.write_text(WHOLE.replace("seed = 5", "").replace("repeats = 2", ""))
    assert "seed" not in read(file).settings(drawn)


def test_explicit_workers_are_kept():
    own = {"experiment": {"engine": {"workers": 2}}, "parameters": {"rounds": [1]}}
    assert "engine.workers" not in settings.parse(own).settings({"rounds": 1})
    mine = {"experiment": {}, "parameters": {"engine.workers": [2]}}
    assert settings.parse(mine).settings({"engine.workers": 2}) == {"engine.workers": 2}


def test_the_number_of_trials_is_at_most_the_size_of_the_space():
    """A grid is always complete, for any `trials`."""
    table = {"parameters": {"a.b": [1, 2, 3], "c": {"min": 1, "max": 2}}, "experiment": {}}
    assert settings.parse({**table, "trials": 2}).num_points == 6
    assert settings.parse({**table, "algorithm": "random", "trials": 100}).num_points == 6
    assert settings.parse({**table, "algorithm": "tpe", "trials": 2}).num_points == 2


def test_an_inline_experiment_finds_its_data_beside_the_sweep(tmp_path):
    table = {"data": {"folder": "mnist"}}
    found = settings.parse({"experiment": table, "parameters": {"x": [1]}}, folder=tmp_path)
    assert found.file[1]["data"]["folder"] == str(tmp_path / "mnist")
    assert table["data"]["folder"] == "mnist"


def test_targets_are_objectives():
    found = parse('experiment = "e"\nrounds_to_accuracy = 0.97\nparameters.x = [1]').objective
    assert (found.title, found.direction) == ("rounds to accuracy 0.97", "minimize")
    found = parse('experiment = "e"\nvirtual_s_to_loss = 1\nparameters.x = [1]').objective
    assert (found.metric, found.count, found.rising) == ("loss", "virtual_s", False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"experiment": None}, "experiment"),
        ({"experiment": 3}, "experiment"),
        ({"algorithm": "magic"}, '"grid" or "random" or "tpe"'),
        ({"trials": 0, "algorithm": "random"}, "trials"),
        ({"repeats": 0}, "repeats"),
        ({"seed": -1}, "seed"),
        ({"seed": 1, "parameters": {"seed": [1, 2]}}, "seed"),
        ({"parameters": {}}, "at least one parameter"),
        ({"parameters": {"x": []}}, "values"),
        ({"parameters": {"x": {"min": 1}}}, "min and max"),
        ({"parameters": {"x": {"min": "a", "max": 2}}}, "number"),
        ({"parameters": {"x": {"min": 0.5, "max": 2, "type": "int"}}}, "whole"),
        ({"parameters": {"x": {"min": 1, "max": 2, "type": "odd"}}}, "type"),
        ({"parameters": {"x": {"values": [1], "min": 2}}}, "values and min"),
        ({"parameters": {"x": {"values": [1], "type": "odd"}}}, "type"),
        ({"parameters": {"train": {"batch_size": [1]}}}, "quotes"),
        ({"parameters": {"x": {"min": 0.0, "max": 1.0}}}, "points"),
        ({"parameters": [1]}, "table"),
        ({"variables": {"idle": [1]}}, "idle"),
        ({"derived": {"y": "2 * z"}}, "z"),
        ({"derived": {"y": 2}}, "derived.y as text"),
        ({"derived": {"x": "1"}}, "once"),
        ({"derived": {"y": "x"}, "variables": {"x": [1]}}, "once"),
        ({"pruner": "chainsaw"}, "median"),
        ({"pruner": {"name": "asha", "factor": 1}}, "factor"),
        ({"pruner": {"rungs": 1}}, "pruner"),
        ({"of": "first"}, "best"),
        ({"objective": "improve"}, "maximize"),
        ({"rounds_to_accuracy": 0.9, "metric": "loss"}, "one objective"),
        ({"rounds_to_accuracy": "soon"}, "number"),
        ({"rounds_to_accuracy": 0.9, "objective": "maximize"}, "minimize"),
        ({"metrics": "loss"}, "metrics"),
    ],
)
def test_invalid_sweeps_are_refused(more, said):
    table = {"experiment": {}, "parameters": {"x": [1, 2]}, **more}
    table = {name: value for name, value in table.items() if value is not None}
    with pytest.raises(UsageError, match=said):
        settings.parse(table)


@pytest.mark.parametrize("content", [None, b"a = ", b"\xff"])
def test_invalid_sweep_files_are_refused(tmp_path, content):
    path = tmp_path / "sweep.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"sweep\.toml"):
        read(path)


def test_a_change_of_the_experiment_during_the_sweep_is_detected(file):
    sweep = read(file)
    sweep.identity()
    sweep.check_unchanged()
    (file.parent / "experiment.toml").write_text("rounds = 2")
    with pytest.raises(UsageError, match="changed while"):
        sweep.check_unchanged()
