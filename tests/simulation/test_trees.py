"""Federated XGBoost in ordinary rounds: simulated, over the wire, better than each client alone."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedloom.client.trees import TreeClient, booster
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec
from fedloom.simulation.trees import TreeModel
from fedloom.simulation.wire.harness import over_the_wire
from support.experiments import CLASSES, population

xgboost = pytest.importorskip("xgboost")

EXAMPLE = Path(__file__).parents[2] / "simulations" / "examples" / "trees.py"
SETTINGS = {"objective": "multi:softprob", "num_class": CLASSES, "max_depth": 2}


def _client(name, *, data):
    mine = data.shards[data.names.index(name)]
    return TreeClient(data.examples.x[mine], data.examples.y[mine], SETTINGS)


def _experiment(names=3, rounds=2, workers=1):
    """An experiment that client processes can be spawned with."""
    data = population(sizes=(20, 30, 25)[:names])
    return Experiment(
        population=data,
        model=partial(TreeModel, data.names, rounds, SETTINGS),
        client=partial(_client, data=data),
        spec=run_spec(
            {
                "rounds": rounds,
                "evaluate": False,
                "cohort": {"goal": names, "quorum": names},
                "train": {"steps": 2, "learning_rate": 0.3},
                "config": {"clients": ",".join(data.names)},
            }
        ),
        engine=EngineSettings(workers=workers, device="cpu"),
    )


def test_a_run_of_one_client_equals_xgboost():
    """The same bits after sums and means; the test examples are evaluated with this booster."""
    described = _experiment(names=1, rounds=3)
    result = simulate(described, show=False)
    examples, test = described.population.examples, described.population.test
    direct = xgboost.train(
        {**SETTINGS, "eta": 0.3, "base_score": 0.5, "nthread": 1},
        xgboost.DMatrix(examples.x, label=examples.y),
        6,
    )
    assert booster(result.params, SETTINGS).get_dump() == direct.get_dump()
    guesses = direct.predict(xgboost.DMatrix(test.x)).argmax(axis=1)
    assert result.records[-1].test["accuracy"] == pytest.approx(np.mean(guesses == test.y))


@pytest.mark.long
@pytest.mark.e2e
def test_trees_have_the_same_bits_over_the_wire_and_for_any_number_of_workers():
    """The server has no code for trees."""
    here = simulate(_experiment(), show=False)
    assert simulate(_experiment(workers=2), show=False).digest == here.digest
    assert over_the_wire(_experiment(), show=False).digest == here.digest


@pytest.mark.long
def test_five_sites_are_better_than_each_alone():
    """The example with half the rounds: accuracy on central test digits."""
    described, rounds = config.load(EXAMPLE), 6
    described = replace(
        described,
        spec=replace(described.spec, rounds=rounds),
        engine=EngineSettings(workers=1, device="cpu"),
        test_every=rounds,
    )
    result = simulate(described, show=False).records[-1].test
    data = described.population
    settings = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3}
    settings |= {"eta": 0.3, "base_score": 0.5, "nthread": 1}
    held_out = xgboost.DMatrix(data.test.x, label=data.test.y)
    for shard in data.shards:
        mine = xgboost.DMatrix(data.examples.x[shard], label=data.examples.y[shard])
        alone = xgboost.train(settings, mine, rounds)
        guesses = alone.predict(held_out).argmax(axis=1)
        assert np.mean(guesses == data.test.y) < result["accuracy"] - 0.02
