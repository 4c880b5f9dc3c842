"""Ditto and APFL compared with closed forms on quadratics, and with the deployed client."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.training.simulator import Simulation
from fedloom.strategies import Personal
from support.experiments import CLASSES, FEATURES, Nudge, experiment, population

A = np.array([0.5, 1.0, 2.0, 4.0])
C = np.array([-2.0, 1.5, 0.5, 2.0])
STEPS, RATE = 5, 0.1
DITTO = {"name": "ditto", "pull": 0.7}
APFL = {"name": "apfl", "mix": 0.6, "mix_learning_rate": 0.01}


class Point(nn.Module):
    """One number times the input."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(0.25))

    def forward(self, x):
        """Multiply by it."""
        return x[:, 0] * self.p


def half_square(output, target):
    """With inputs √a and targets √a·c: the quadratic ½·a·(p - c)²."""
    return 0.5 * functional.mse_loss(output, target)


def quadratics(personal, rounds, steps=STEPS):
    """Four clients of quadratics, each with two examples to train on and one held out."""
    x = np.repeat(np.sqrt(A), 3).astype(np.float32)[:, None]
    y = np.repeat(np.sqrt(A) * C, 3).astype(np.float32)
    data = Population(
        examples=Examples(x=x, y=y),
        names=numbered(4),
        shards=[np.arange(3 * k, 3 * k + 2) for k in range(4)],
        held_out_shards=[np.arange(3 * k + 2, 3 * k + 3) for k in range(4)],
        test=None,
        num_classes=0,
    )
    described = experiment(
        data=data,
        rounds=rounds,
        cohort={"goal": 4},
        train={"steps": steps, "learning_rate": RATE},
        metrics={"per_client": True},
        personal=personal,
    )
    return replace(described, model=Point, loss=half_square)


def losses(result):
    """Each client's loss in the evaluation round, with its own model."""
    clients = result.records[-1].spread["evaluation"]["clients"]
    return np.array([clients[name]["values"]["loss"] for name in numbered(4)])


def settled():
    """The fixed point of FedAvg: each client pulls by 1 - (1 - ηa)^K."""
    pull = 1 - (1 - RATE * A) ** STEPS
    return (pull * C).sum() / pull.sum()


@pytest.mark.long
@pytest.mark.parametrize("pull", [0.0, 0.7, 5.0])
def test_dittos_own_models_settle_at_the_closed_form(pull):
    """At v = (a·c + λ·w) / (a + λ), with w at the fixed point of FedAvg."""
    result = simulate(quadratics({"name": "ditto", "pull": pull}, 25), show=False)
    w = settled()
    assert result.params["p"] == pytest.approx(w, abs=1e-5)
    v = (A * C + pull * w) / (A + pull)
    np.testing.assert_allclose(losses(result), 0.5 * A * (v - C) ** 2, atol=1e-5)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_apfl_follows_its_paper(rounds, rate):
    """v, w, α and the evaluated model of every client, line by line."""
    personal = {"name": "apfl", "mix": 0.6, "mix_learning_rate": rate}
    result = simulate(quadratics(personal, rounds), show=False)
    w, v, alpha = 0.25, np.full(4, 0.25), np.full(4, 0.6)
    for _ in range(rounds):
        local = np.full(4, w)
        for _ in range(STEPS):
            at = A * (alpha * v + (1 - alpha) * local - C)
            slope = (v - local) * at
            v = v - RATE * alpha * at
            alpha = np.clip(alpha - rate * slope, 0, 1)
            local = local - RATE * A * (local - C)
        w = local.mean()
    assert result.params["p"] == pytest.approx(w, abs=1e-6)
    mixed = alpha * v + (1 - alpha) * w
    np.testing.assert_allclose(losses(result), 0.5 * A * (mixed - C) ** 2, atol=1e-5)
    assert (np.ptp(alpha) > 0) == (rate > 0)


@pytest.mark.long
def test_apfl_with_a_fixed_share_reaches_each_clients_optimum():
    mixed = simulate(quadratics({"name": "apfl", "mix": 0.9}, 160, steps=1), show=False)
    np.testing.assert_allclose(losses(mixed), 0, atol=1e-4)
    none = simulate(quadratics({"name": "apfl", "mix": 0.0}, 25), show=False)
    np.testing.assert_allclose(losses(none), 0.5 * A * (settled() - C) ** 2, atol=1e-5)


def noisy():
    """A model with batch normalisation and dropout, its weights drawn from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(FEATURES, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(8, CLASSES),
        )


def described(personal, **settings):
    """Six clients with three examples held out each, half of them in a round."""
    data = population(held_out=3, sizes=(13, 31, 17, 21, 9, 18))
    settings = {"cohort": {"goal": 3, "quorum": 3}, "rounds": 4, **settings}
    made = experiment(data=data, kernel="resident", personal=personal, **settings)
    return replace(made, model=noisy)


@pytest.mark.long
@pytest.mark.parametrize("personal", [DITTO, APFL], ids=["ditto", "apfl"])
def test_the_shared_model_has_the_bits_of_fedavg(personal):
    plain, own = (simulate(described(p), show=False) for p in ({}, personal))
    assert own.digest == plain.digest
    assert own.records[-1].evaluation != plain.records[-1].evaluation


@pytest.mark.long
@pytest.mark.parametrize("personal", [DITTO, APFL], ids=["ditto", "apfl"])
def test_workers_interruptions_and_the_deployed_client_change_no_bit(personal, tmp_path):
    """Two workers, a stop after two rounds, or TorchClient's own code."""
    what = described(personal)
    data = what.population
    x, y = torch.from_numpy(data.examples.x), torch.from_numpy(data.examples.y)

    def client(name):
        number = data.names.index(name)
        mine, held_out = data.shards[number], data.held_out_shards[number]
        return TorchClient(
            noisy(),
            (x[mine], y[mine]),
            functional.cross_entropy,
            evaluate=(x[held_out], y[held_out]),
        )

    expected = [r.evaluation for r in simulate(what, show=False).records]
    for other in (described(personal, workers=2), replace(what, client=client)):
        assert [r.evaluation for r in simulate(other, show=False).records] == expected
    path = tmp_path / "checkpoint.safetensors"
    first = Simulation(what, path)
    rounds = first.rounds()
    found = [next(rounds).evaluation, next(rounds).evaluation]
    first.save()
    first.close()
    second = Simulation(what, path, resume=True)
    found += [record.evaluation for record in second.rounds()]
    second.close()
    assert found == expected


def test_clipping_limits_the_steps_of_the_own_model_too():
    train = {"steps": 1, "learning_rate": 1.0, "clip_norm": 0.125}
    what = quadratics({"name": "ditto", "pull": 0.0}, 1)
    spec = replace(what.spec, train=train)
    result = simulate(replace(what, spec=spec), show=False)
    v = 0.25 + 0.125 * np.sign(C - 0.25)
    np.testing.assert_allclose(losses(result), 0.5 * A * (v - C) ** 2, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"personal": {"name": "dito"}},
            "personal.name as a known name, got 'dito'. Did you mean 'ditto'",
        ),
        ({"personal": {"name": "ditto", "pull": -1.0}}, "pull"),
        ({"personal": {"name": "apfl", "mix": 1.5}}, "mix from 0 to 1"),
        ({"personal": {**DITTO, "keep": ["0.*"]}}, "no personal.keep with ditto"),
        (
            {"personal": DITTO, "train": {"epochs": 1, "learning_rate": 0.1, "widths": [0.5]}},
            "whole",
        ),
        ({"personal": DITTO, "kernel": "fused"}, "fused does not support personal.name"),
        ({"personal": DITTO, "client": Nudge}, "this client's own model"),
    ],
)
def test_incompatible_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        simulate(experiment(**settings), show=False)


def test_settings_are_rebuilt_from_their_wire_form():
    """From the name and the numbers."""
    personal = Personal(**APFL)
    assert Personal(name=personal.name, **personal.numbers()) == personal
    assert Personal(keep=("a",)).numbers() == {}
