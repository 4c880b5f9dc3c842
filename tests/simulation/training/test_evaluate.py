"""A caller's evaluation of the model after each round."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import run
from fedloom.simulation.api import simulate
from fedloom.simulation.wire.harness import over_the_wire
from support.experiments import experiment, population


def norm(params):
    return float(np.sqrt(sum(float((array**2).sum()) for array in params.values())))


def measure(number, params):
    return {"norm": norm(params), "round": number, "none": None, "deep": {"a": np.float32(2)}}


@pytest.mark.parametrize("test", [0, 40])
def test_its_numbers_enter_the_record_and_the_files(tmp_path, test):
    """They are those of the model that `on_round` gets, with and without test examples."""
    data = population(test=test) if test else replace(population(), test=None)
    made = replace(experiment(data=data, rounds=3), evaluate=measure)
    seen = []
    result = simulate(
        made,
        out=tmp_path / "out",
        show=False,
        on_round=lambda record, params: seen.append((record.test, norm(params))),
    )
    names = {"norm", "round", "deep/a"} | ({"loss", "accuracy"} if test else set())
    for number, (found, expected) in enumerate(seen, 1):
        assert set(found) == names
        assert (found["norm"], found["round"], found["deep/a"]) == (expected, number, 2.0)
    with (tmp_path / "out" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    (column,) = [name for name in rows[0] if name.endswith("norm")]
    assert [float(row[column]) for row in rows] == pytest.approx([each for _, each in seen])
    assert result.digest == simulate(replace(made, evaluate=None), show=False).digest


def test_it_ends_a_run_and_is_called_as_often_as_tests(tmp_path):
    data = replace(population(), test=None)
    stop = {"mine": {"at_least": 3}}
    made = replace(
        experiment(data=data, rounds=9), evaluate=lambda number, _: {"mine": number}, stop=stop
    )
    assert len(simulate(made, show=False).records) == 3
    rare = replace(made, stop={}, test_every=4)
    tested = [record.round for record in simulate(rare, show=False).records if record.test]
    assert tested == [4, 8, 9]


def test_a_script_takes_it():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    result = run(
        model="logistic", data=(x, y), rounds=2, show=False, evaluate=lambda n, _: {"mine": n}
    )
    assert [record.test["mine"] for record in result.records] == [1, 2]


def test_numbers_of_a_diverged_model_are_recorded():
    made = replace(experiment(rounds=1), evaluate=lambda *_: {"mine": float("inf")})
    assert simulate(made, show=False).records[0].test["mine"] == float("inf")


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        (lambda *_: 0.5, "evaluate returned float on the model after round 1: expected numbers by"),
        (lambda *_: None, "returned NoneType"),
        (lambda *_: {"a": "high"}, "'a' returned str on the model after round 1"),
        (lambda *_: {3: 1.0}, "printable characters, got 3"),
        (lambda *_: {"loss": 1.0}, "'loss', which the test examples give already"),
        (lambda *_: {"a": 1 // 0}, "evaluate failed on the model after round 1: ZeroDivision"),
        (lambda params: {}, r"evaluate: expected a function of \(round, params\)"),
        (3, "got int"),
    ],
)
def test_what_cannot_be_recorded_is_named(evaluate, said):
    with pytest.raises(UsageError, match=said):
        simulate(replace(experiment(data=population(test=40)), evaluate=evaluate), show=False)


def test_it_cannot_change_the_model():
    def write(_, params):
        next(iter(params.values()))[:] = 0

    with pytest.raises(UsageError, match="read-only"):
        simulate(replace(experiment(), evaluate=write), show=False)


def test_it_is_refused_where_it_would_never_be_called():
    made = experiment()
    with pytest.raises(UsageError, match=r"evaluate needs test\.every"):
        replace(made, evaluate=measure, test_every=0)
    with pytest.raises(UsageError, match="Remove evaluate"):
        over_the_wire(replace(made, evaluate=measure), show=False)


def test_a_hook_takes_the_same_arguments_over_the_wire():
    said = r"on_round: expected a function of \(record, params\), got one of \(record\)"
    for runs in (simulate, over_the_wire):
        with pytest.raises(UsageError, match=said):
            runs(experiment(), on_round=lambda record: None, show=False)
