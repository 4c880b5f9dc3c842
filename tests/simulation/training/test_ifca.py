"""IFCA: groups of clients are separated, each with its own model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedloom.client.torch import TorchClient, parameters
from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.training.simulator import Simulation
from fedloom.strategies import DELTA, Full, Partial, TensorSpec, exponent
from fedloom.strategies.algorithms.ifca import Ifca
from support.experiments import CLASSES, FEATURES, Nudge, experiment, population

IFCA = {"name": "ifca", "clusters": 2}
TRUTH = np.array([2.0, -1.0, 0.5], np.float32)


def line():
    """A linear model with weights of zero."""
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def error(output, target):
    """The mean squared error of outputs of shape (N, 1)."""
    return functional.mse_loss(output[:, 0], target)


def opposed(clients=8, **settings):
    """Half of the clients have the targets x·t, the others -x·t; two examples held out each."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12 * clients, 3)).astype(np.float32)
    sign = np.repeat([1.0, -1.0], 6 * clients).astype(np.float32)
    places = np.arange(12 * clients).reshape(clients, 12)
    data = Population(
        examples=Examples(x=x, y=sign * (x @ TRUTH)),
        names=numbered(clients),
        shards=list(places[:, 2:]),
        held_out_shards=list(places[:, :2]),
        test=None,
        num_classes=0,
    )
    settings = {"strategy": IFCA, "rounds": 30, "cohort": {"goal": clients}, **settings}
    described = experiment(
        data=data,
        train={"epochs": 2, "learning_rate": 0.1},
        metrics={"per_client": True},
        **settings,
    )
    return replace(described, model=line, loss=error)


@pytest.mark.long
def test_two_groups_with_opposite_optima_are_separated():
    result = simulate(opposed(), show=False)
    told = result.records[-2].spread["training"]["clients"]
    picked = [told[name]["values"]["cluster"] for name in numbered(8)]
    assert picked in ([0.0] * 4 + [1.0] * 4, [1.0] * 4 + [0.0] * 4)
    losses = result.records[-1].spread["evaluation"]["clients"]
    assert max(values["values"]["loss"] for values in losses.values()) < 1e-4
    sign = 1 if picked[0] == 0 else -1
    np.testing.assert_allclose(result.params["weight"][0], sign * TRUTH, atol=0.01)
    one = simulate(opposed(strategy={"name": "fedavg"}), show=False)
    assert one.records[-1].evaluation["loss"] > 1.0


def test_the_models_start_with_different_weights_and_equal_biases():
    """Weights differ by normal numbers of the set spread, drawn by the run's seed."""
    model = {
        "w": np.ones((200, 50), np.float32),
        "b": np.zeros(3, np.float32),
        "n": np.array(4, np.int64),
    }
    strategy = Ifca(clusters=3, spread=0.5)
    state, again, other = (strategy.init(model, seed) for seed in (7, 7, 8))
    assert state.slots.keys() == {"cluster_1", "cluster_2"}
    first, second = (state.slots[slot]["w"] for slot in ("cluster_1", "cluster_2"))
    assert first.tobytes() == again.slots["cluster_1"]["w"].tobytes()
    assert first.tobytes() != other.slots["cluster_1"]["w"].tobytes()
    assert np.std(first - model["w"]) == pytest.approx(0.5, rel=0.05)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05
    assert not state.slots["cluster_1"]["b"].any()
    assert state.slots["cluster_1"]["n"] == 4


def test_each_model_changes_by_the_mean_of_its_group():
    model = {"w": np.zeros((2, 2), np.float32)}
    strategy = Ifca(clusters=3)
    state = strategy.init(model)
    specs = strategy.specs({"w": TensorSpec(shape=(2, 2), dtype=np.dtype(np.float32))})
    partial = Partial(specs, exponent(64.0, 16.0))
    for group, weight, value in ((DELTA, 1, 1.0), (DELTA, 3, 2.0), ("cluster_2", 5, -4.0)):
        partial.add_array((group, "w"), Full(), weight, np.full((2, 2), value, np.float32))
        partial.count += 1
    new, after = strategy.finish(state, model, partial)
    np.testing.assert_allclose(new["w"], 1.75)
    assert after.slots["cluster_1"]["w"] is state.slots["cluster_1"]["w"]
    moved = after.slots["cluster_2"]["w"] - state.slots["cluster_2"]["w"]
    np.testing.assert_allclose(moved, -4.0, atol=1e-6)


def normed():
    """A model with batch normalisation, its weights drawn from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )


def described(**settings):
    """Six clients with three examples held out each, half of them in a round."""
    settings = {"cohort": {"goal": 3, "quorum": 3}, "rounds": 4, "strategy": IFCA, **settings}
    data = population(held_out=3, sizes=(13, 31, 17, 21, 9, 18))
    return replace(experiment(data=data, kernel="resident", **settings), model=normed)


@pytest.mark.long
def test_workers_interruptions_and_the_deployed_client_change_no_bit(tmp_path):
    """Two workers, a stop after two rounds, or TorchClient's own code."""
    what = described()
    data = what.population
    x, y = torch.from_numpy(data.examples.x), torch.from_numpy(data.examples.y)

    def client(name):
        number = data.names.index(name)
        mine, held_out = data.shards[number], data.held_out_shards[number]
        return TorchClient(
            normed(),
            (x[mine], y[mine]),
            functional.cross_entropy,
            evaluate=(x[held_out], y[held_out]),
        )

    def found(records):
        return [(record.evaluation, record.training) for record in records]

    expected = simulate(what, show=False)
    for other in (described(workers=2), replace(what, client=client)):
        result = simulate(other, show=False)
        assert result.digest == expected.digest
        assert found(result.records) == found(expected.records)
    path = tmp_path / "checkpoint.safetensors"
    first = Simulation(what, path)
    rounds = first.rounds()
    records = [next(rounds), next(rounds)]
    first.save()
    first.close()
    second = Simulation(what, path, resume=True)
    records += list(second.rounds())
    assert second.digest() == expected.digest
    second.close()
    assert found(records) == found(expected.records)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": {"name": "ifca", "clusters": 1}}, "clusters >= 2"),
        ({"rule": {"name": "fedprox", "mu": 0.1}}, "has its own, got fedprox"),
        ({"personal": {"name": "apfl"}}, "one shared model with personal.name = apfl"),
        ({"aggregation": {"name": "median"}, "weighting": "uniform"}, "got ifca, which also sends"),
        ({"kernel": "fused"}, "not 'ifca'"),
        ({"client": Nudge}, "one of 2 models from train"),
    ],
)
def test_incompatible_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        simulate(experiment(**{"strategy": IFCA, **settings}), show=False)


def test_equal_initial_models_are_not_separated():
    """The reason for the spread: the first round already divides the clients."""
    result = simulate(opposed(rounds=1), show=False)
    told = result.records[0].spread["training"]["clients"]
    assert {values["values"]["cluster"] for values in told.values()} == {0.0, 1.0}
    assert parameters(line())["weight"].any() == np.False_
