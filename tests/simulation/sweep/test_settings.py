"""Sweeps from TOML."""

import tomllib
from dataclasses import replace

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep import settings, space
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


GRIDS = [
    ({"a": [8, 32, 128], "b": [0, 1]}, {"c": "0.1 * (a / 8) ** b"}, 3),
    ({"a": [1, 2, 3, 4], "b": [1.0, 2.0, 3.0, 4.0]}, {"c": "a * b"}, 9),
    ({"a": {"min": 1, "max": 9, "points": 50, "log": True}, "b": [1, 2]}, {"c": "a // 3 + b"}, 5),
    ({"a": {"mu": 0.0, "sigma": 1.0, "type": "int", "points": 30}, "b": [1, 2]}, {"c": "a + b"}, 0),
]


def only_formulas(parameters, derived, **more):
    """A sweep of which only the derived settings are settings of the experiment."""
    return settings.parse({"experiment": {}, "variables": parameters, "derived": derived, **more})


@pytest.mark.parametrize(("parameters", "derived", "num"), GRIDS)
def test_a_grid_runs_no_settings_twice(parameters, derived, num):
    """Combinations that give equal settings are one trial, the first of them."""
    sweep = only_formulas(parameters, derived)
    chosen = [sweep.settings(point)["c"] for point in sweep.points]
    everything = [
        sweep.settings(space.combination(sweep.parameters, i))["c"]
        for i in range(space.grid_size(sweep.parameters))
    ]
    assert chosen == list(dict.fromkeys(everything)), "first of equals, in the order of the grid"
    assert len(chosen) == num or not num
    assert sweep.num_points == len(chosen) < len(everything)
    assert sweep.identity()["different_settings"] == len(chosen)


def test_a_search_of_a_finite_space_counts_different_settings():
    parameters, derived, num = GRIDS[0]
    for trials, expected in ((100, num), (2, 2)):
        assert only_formulas(
            parameters, derived, algorithm="random", trials=trials
        ).num_points == expected  # fmt: skip
    assert "different_settings" not in settings.parse(
        {"experiment": {}, "parameters": {"a": [1, 2]}}
    ).identity()  # fmt: skip


def test_a_formula_without_a_value_keeps_its_trial():
    sweep = only_formulas({"a": [0, 1, 2]}, {"c": "4 // a // 4"})
    assert sweep.points == ({"a": 0}, {"a": 1}, {"a": 2})


def test_a_grid_that_nobody_can_run_is_refused():
    table = {"experiment": {}, "parameters": {n: {"min": 1, "max": 1000} for n in "ab"}}
    with pytest.raises(UsageError, match="1,000,000 combinations, more than 100,000"):
        settings.parse(table)


def test_a_seed_and_repeats_are_refused():
    """Every repeat would have the same seed, and a deviation of 0."""
    table = {"experiment": {}, "parameters": {"seed": [1, 2]}}
    assert settings.parse(table).num_points == 2
    with pytest.raises(UsageError, match="each repeat has its own seed"):
        settings.parse({**table, "repeats": 2})
    with pytest.raises(UsageError, match="each repeat has its own seed"):
        settings.parse(
            {**table, "parameters": {"rounds": [1]}, "derived": {"seed": "3"}, "repeats": 2}
        )


PYTHON = """
experiment = {"seed": 7, "engine": {"workers": 2}}
def other():
    return {"seed": 8}
"""


def test_repeats_of_a_python_file_begin_with_its_own_seed(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PYTHON)

    def of(name, **more):
        table = {"experiment": f"mine.py{name}", "parameters": {"a": [1, 2]}, **more}
        return settings.parse(table, folder=tmp_path)

    chosen = of("", repeats=2).settings({"a": 1}, 1)
    assert chosen == {"a": 1, "seed": 8}, "with the file's own number of workers"
    assert of(":other", repeats=2).settings({"a": 1}, 1)["seed"] == 9
    assert of(":other", repeats=2, seed=3).settings({"a": 1}, 1)["seed"] == 4
    assert of("").identity() != of(":other").identity()


def test_an_experiment_whose_settings_are_toml_may_have_any_name(file, tmp_path):
    (tmp_path / "experiment.conf").write_text('name = "e"\nseed = 40\n')
    found = read(file, experiment=str(tmp_path / "experiment.conf"))
    assert replace(found, seed=None).settings(found.points[0], 1)["seed"] == 41


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from fedloom.simulation import Experiment\nexperiment = object.__new__(Experiment)",
         "Make its settings there"),
        ("experiment = 3", "Expected an Experiment or settings"),
        ("experiment = {'seed': 'x'}", "seed as a whole number"),
    ],
)  # fmt: skip
def test_a_python_file_without_settings_is_refused(tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)
    table = {"experiment": "mine.py", "parameters": {"a": [1]}, "repeats": 2}
    sweep = settings.parse(table, folder=tmp_path)
    with pytest.raises(UsageError, match=said):
        sweep.settings({"a": 1})


@pytest.mark.parametrize(
    "values", [[1, True], [0, False], [[1], "[1]"], [0.5, float("nan")], [None, None]]
)
def test_values_that_the_study_stores_alike_are_refused(values):
    with pytest.raises(UsageError, match="differ"):
        settings.parse({"experiment": {}, "parameters": {"x": values}})


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
