"""Comet Optimizer configs are read unchanged."""

import json
from pathlib import Path

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep import comet
from fedloom.simulation.sweep.reading import read
from fedloom.simulation.sweep.study import TrialStore

PUBLISHED = {
    "algorithm": "bayes",
    "spec": {
        "maxCombo": 30,
        "objective": "minimize",
        "metric": "val_loss",
        "minSampleSize": 500,
        "retryLimit": 10,
        "retryAssignLimit": 0,
        "gridSize": 10,
        "seed": 3,
    },
    "parameters": {
        "learning_rate": {"type": "float", "scalingType": "loguniform", "min": 1e-5, "max": 0.1},
        "batch-size": {"type": "discrete", "values": [16, 32, 64]},
        "epochs": {"type": "integer", "min": 1, "max": 5},
        "model": {"type": "categorical", "values": ["2nn", "cnn"]},
        "train.warmup_rounds": {"type": "integer", "scaling_type": "uniform", "min": 0, "max": 3},
        "alpha": {"type": "double", "scalingType": "lognormal", "mu": 0, "sigma": 1},
        "rounds": [10, 20],
        "clients": 50,
    },
    "name": "Bayesian Search",
    "trials": 2,
}


def parse(**more):
    return comet.parse({**PUBLISHED, **more}, experiment={})


def test_a_published_config_is_read_unchanged():
    sweep = parse()
    assert (sweep.name, sweep.algorithm, sweep.trials) == ("Bayesian Search", "tpe", 30)
    assert (sweep.repeats, sweep.seed) == (2, 3)
    assert (sweep.objective.metric, sweep.objective.direction) == ("loss", "minimize")
    assert {p.name: p.setting for p in sweep.parameters} == {
        "learning_rate": "train.learning_rate",
        "batch-size": "train.batch_size",
        "epochs": "train.epochs",
        "model": "model.name",
        "train.warmup_rounds": "train.warmup_rounds",
        "alpha": "data.partition.alpha",
        "rounds": "rounds",
        "clients": "data.clients",
    }
    rate, batch, epochs, *_, alpha, rounds, clients = sweep.parameters
    assert (rate.log, rate.low, rate.high, rate.kind) == (True, 1e-5, 0.1, "float")
    assert batch.values == (16, 32, 64)
    assert (epochs.kind, epochs.low, epochs.high) == ("int", 1, 5)
    assert (alpha.mu, alpha.sigma, alpha.log, alpha.low) == (0.0, 1.0, True, None)
    assert (rounds.values, clients.values) == ((10, 20), (50,))


def test_a_range_has_ten_grid_points_by_default():
    """`gridSize` of the parameter, else of the spec, overrides it."""
    ranges = {"lr": {"type": "float", "min": 0, "max": 0.9, "grid_size": 4}}
    found = parse(algorithm="grid", spec={"maxCombo": 0}, parameters=ranges)
    assert found.parameters[0].grid() == [0.0, 0.3, 0.6, 0.9]
    del ranges["lr"]["grid_size"]
    assert parse(algorithm="grid", spec={}, parameters=ranges).num_points == 10
    assert parse(algorithm="grid", spec={"gridSize": 3}, parameters=ranges).num_points == 3
    assert parse(algorithm="grid", spec={"maxCombo": 7}, parameters=ranges).num_points == 7


@pytest.mark.parametrize("algorithm", ["random", "grid", "bayes"])
@pytest.mark.parametrize("kind", ["integer", "float", "double"])
@pytest.mark.parametrize(
    "scaling", ["linear", "uniform", "loguniform", "normal", "lognormal", None]
)
def test_every_documented_range_runs_within_its_bounds(tmp_path, algorithm, kind, scaling):
    """With whole numbers for integers; of `gridSize` = 4 points in a grid."""
    bounds = {"min": 1, "max": 100} if scaling != "lognormal" else {"min": 1, "max": 1e4}
    normal = {"normal": {"mu": 50, "sigma": 20}, "lognormal": {"mu": 3, "sigma": 1}}
    entry = {"type": kind, "gridSize": 4, **bounds, **normal.get(scaling, {})}
    entry |= {"scalingType": scaling} if scaling else {}
    sweep = parse(algorithm=algorithm, spec={"maxCombo": 6}, trials=1, parameters={"lr": entry})
    study = TrialStore(sweep, tmp_path)
    values = [sweep.settings(study.start(slot).params)["train.learning_rate"]
              for slot in study.missing()]  # fmt: skip
    study.close()
    assert len(values) == (4 if algorithm == "grid" else 6)
    assert all(bounds["min"] <= value <= bounds["max"] for value in values)
    assert all(isinstance(value, int) for value in values) == (kind == "integer")
    assert len(set(values)) == len(values)


def test_values_that_occur_twice_are_tried_once():
    twice = {"batch_size": {"type": "discrete", "values": [8, 16, 8.0, 32, 16]}}
    assert parse(algorithm="grid", spec={}, parameters=twice).num_points == 3


def test_names_can_be_mapped():
    odd = {"width": {"type": "discrete", "values": [8, 16]}}
    with pytest.raises(UsageError, match="--map width="):
        parse(parameters=odd)
    found = comet.parse(
        {**PUBLISHED, "parameters": odd}, experiment={}, names={"width": "model.width"}
    )
    assert found.parameters[0].setting == "model.width"
    assert parse(parameters=odd, map={"width": "model.w"}).parameters[0].setting == "model.w"


def test_formulas_express_a_published_search_in_one_file():
    sweep = parse(
        algorithm="grid",
        parameters={
            "batch_size": {"type": "discrete", "values": [8, 32, 128, 512]},
            "scaled": {"type": "discrete", "values": [0, 1]},
        },
        derived={"train.learning_rate": "0.1 * (batch_size / 8) ** scaled"},
    )
    assert sweep.num_points == 7, "with a batch of 8 both rates are 0.1"
    chosen = sweep.settings({"batch_size": 128, "scaled": 1})
    assert chosen["train.learning_rate"] == pytest.approx(1.6)
    assert chosen["train.batch_size"] == 128
    assert "scaled" not in chosen


def test_a_search_without_a_limit_gets_the_default_number_of_trials():
    """With a note."""
    sweep = parse(spec={"metric": "accuracy"})
    assert sweep.num_points == 20
    assert sweep.objective.direction == "maximize"
    assert "--trials" in sweep.notes[0]
    assert comet.parse(PUBLISHED, experiment={}, trials=4).num_points == 4
    few = parse(spec={}, parameters={"batch_size": [8, 16, 32]})
    assert (few.num_points, few.notes) == (3, ())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithm": "genetic"}, "bayes"),
        ({"algorithm": None}, "bayes"),
        ({"spec": {"metrics": "loss"}}, "metrics"),
        ({"spec": {"objective": "improve"}}, "maximize"),
        ({"parameters": {"lr": {"type": "float", "min": 1}}}, "min and max"),
        ({"parameters": {"lr": {"type": "complex"}}}, "type"),
        ({"parameters": {"lr": {"type": "float", "scalingType": "cubic"}}}, "scaling"),
        ({"parameters": {"lr": {"type": "float", "min": "0", "max": 1}}}, "number"),
        (
            {"parameters": {"lr": {"type": "float", "min": 0, "max": 1, "gridSize": 1.5}}},
            "gridSize",
        ),
        ({"parameters": {"lr": {"type": "discrete"}}}, "list of values"),
        ({"parameters": {"lr": {"type": "float", "minimum": 0}}}, "minimum"),
        ({"parameters": {"lr": {"type": "discrete", "values": [1], "min": 0}}}, "min"),
        ({"parameters": {"lr": {"type": "float", "min": 0, "max": 1, "value": 1}}}, "value"),
        ({"parameters": {"lr": {"type": "float", "min": 0, "max": 1, "values": [1]}}}, "values"),
        ({"parameters": {"lr": {"type": "float", "min": 0, "max": 1, "mu": 1}}}, "mu"),
        (
            {"parameters": {"lr": {"type": "float", "scalingType": "normal", "min": 0, "max": 1}}},
            "mu and sigma",
        ),
        ({"parameters": {"epochs": {"type": "integer", "min": 0.5, "max": 2}}}, "whole min"),
        ({"parameters": {"lr": {"type": "normal", "mu": 0, "sigma": 1}}}, "type of integer"),
        ({"parameters": {"lr": {"type": "gaussian"}}}, "type of integer"),
        ({"spec": {"maxCombo": "10"}}, "maxCombo"),
        ({"spec": {"gridSize": 0}}, "gridSize"),
        ({"trials": 0}, "trials"),
        ({"algorithm": ["grid"]}, "bayes"),
        ({"parameters": 3}, "a table .parameters."),
        ({"project": "x"}, "project"),
        ({"derived": {"x": "__import__('os')"}}, "formula"),
    ],
)
def test_an_invalid_config_is_refused(more, said):
    with pytest.raises(UsageError, match=said):
        parse(**more)


def test_the_file_name_determines_the_format(tmp_path):
    path = tmp_path / "comet.json"
    path.write_text(json.dumps(PUBLISHED))
    with pytest.raises(UsageError, match="--experiment"):
        read(path)
    assert str(read(path, experiment="there.toml").experiment) == "there.toml"
    path.write_text(json.dumps({**PUBLISHED, "experiment": "here.toml"}))
    assert read(path).experiment == tmp_path / "here.toml"
    for wrong in ("[1]", "{"):
        path.write_text(wrong)
        with pytest.raises(UsageError, match=r"comet\.json"):
            read(path)
    with pytest.raises(UsageError, match="does not exist"):
        read(tmp_path / "missing.json")


LITERAL = """{
# How to search
'algorithm': "random",
"parameters": {  # what varies
    "batch_size": {"type": 'discrete', "values": [8, 16, 32, 64, 128, 256, 512,],},
    'train.momentum': {'type': 'float', 'min': -.5, 'max': 0x1,},
    'model.bias': (True, False, None),
},
"spec": {
    "metric": "val_loss",
    "objective": "minimize",
},
}
"""
SHARED = Path(__file__).parents[4] / "shared" / "data" / "comet-optimizer.config"


def test_a_literal_with_comments_and_trailing_commas_is_read_unchanged(tmp_path):
    path = tmp_path / "optimizer.config"
    path.write_text("\ufeff\n" + LITERAL, "utf-8")
    sweep = read(path, experiment="there.toml")
    batch, momentum, bias = sweep.parameters
    assert (sweep.algorithm, sweep.objective.metric) == ("random", "loss")
    assert batch.values == (8, 16, 32, 64, 128, 256, 512)
    assert (momentum.low, momentum.high) == (-0.5, 1.0)
    assert bias.values == (True, False, None)


@pytest.mark.skipif(not SHARED.exists(), reason="the folder of shared data is not here")
def test_the_shared_config_is_read_unchanged():
    sweep = read(SHARED, experiment="there.toml")
    (batch,) = sweep.parameters
    assert (batch.setting, batch.values) == ("train.batch_size", (8, 16, 32, 64, 128, 256, 512))
    assert (sweep.objective.metric, sweep.objective.direction) == ("loss", "minimize")
    assert (sweep.num_points, sweep.notes) == (7, ())
