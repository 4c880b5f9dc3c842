"""The demo's model, shards, baselines and rounds, at a small size."""

import dataclasses
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from fedloom.client.torch import parameters
from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.demo import baselines, client_main, data, model
from fedloom.simulation.demo.settings import DIGITS, DemoSettings
from fedloom.simulation.experiment import Experiment, run_spec

TINY = dataclasses.replace(
    DIGITS, num_clients=3, rounds=2, epochs=1, batch_size=32, learning_rate=0.1
)


@pytest.fixture(scope="module")
def population():
    """The digits on three clients."""
    return data.population(TINY)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 9), (1, 28, 28), (3, 32, 32)])
def test_the_model_scores_images_of_any_size(shape):
    network = model.build(shape, 7, seed=0)
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


def test_a_seed_gives_the_initial_weights_without_changing_torchs_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = (parameters(model.build((1, 8, 8), 10, seed=1)) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_held_out_shards_make_up_the_held_out_set(population):
    shards = np.concatenate([*population.shards, *population.held_out_shards])
    assert sorted(shards) == list(range(1797))
    held_out = data.take(population, np.sort(np.concatenate(population.held_out_shards)))
    assert np.array_equal(held_out.x, population.test.x)
    assert np.array_equal(held_out.y, population.test.y)
    assert len(data.all_training(population)) + len(population.test) == 1797


def test_a_client_process_loads_its_shard_from_its_file(population, tmp_path, monkeypatch):
    """The client program trains and evaluates on its examples of the population."""
    paths = data.write(population, tmp_path)
    assert list(paths) == ["site-1", "site-2", "site-3"]
    monkeypatch.setenv(client_main.SHARD, str(paths["site-2"]))
    client = client_main.client()
    params = parameters(client.model)
    task = baselines.training_task("site-2", 1, TINY)
    assert client.evaluate(params, task)[0] == len(population.held_out_shards[1])
    assert client.train(params, task)[1] == len(population.shards[1])
    train, held_out, num_classes = data.read(paths["site-2"])
    for part, written in zip(data.shards_of(population, 1), (train, held_out), strict=True):
        assert np.array_equal(part.x, written.x)
        assert np.array_equal(part.y, written.y)
    assert num_classes == 10


@pytest.mark.long
def test_baselines_train_all_models_by_the_same_rules(population):
    """A point for each round of the centralised model, and one for each single client."""
    seen = {}
    found = baselines.measure(population, TINY, num_processes=1, progress=seen.__setitem__)
    assert len(found.centralised) == TINY.rounds
    assert list(found.alone) == list(population.names)
    assert seen == {baselines.CENTRALISED: found.centralised[-1], **found.alone}
    assert all(0 <= accuracy <= 1 for accuracy in seen.values())


@pytest.mark.long
def test_a_simulation_of_the_demo_learns(population):
    """The run that the demo submits is an experiment, too."""
    longer = dataclasses.replace(TINY, rounds=6, epochs=2, batch_size=8, learning_rate=0.2)
    experiment = Experiment(
        population=population,
        model=partial(model.build, *data.shape_of(population), seed=0),
        spec=run_spec(longer.run),
    )
    records = simulate(experiment, show=False).records
    assert [record.kind for record in records][-1] == "evaluate"
    assert records[-2].test["accuracy"] > 0.8


@pytest.mark.parametrize("change", [{"rounds": 0}, {"num_clients": 0}, {"learning_rate": 0.0}])
def test_settings_that_train_nothing_are_refused(change):
    values = {"data": "x", "rounds": 1, "epochs": 1, "batch_size": 1, "learning_rate": 0.1}
    with pytest.raises(UsageError, match=next(iter(change))):
        DemoSettings(**{**values, **change})


@pytest.mark.long
def test_a_client_process_imports_only_what_it_needs():
    """Eight start at once: no scikit-learn, no matplotlib, no optimizers of torch."""
    code = (
        "import sys, fedloom.simulation.demo.client_main\n"
        "heavy = {'sklearn', 'matplotlib', 'torch._dynamo', 'sympy', 'fastapi', 'sqlalchemy'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
