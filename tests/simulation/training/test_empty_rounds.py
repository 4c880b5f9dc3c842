"""A round whose updates have no tensors changes nothing."""

import numpy as np
import pytest

from fedloom.client import Client
from fedloom.simulation.api import simulate
from fedloom.simulation.training.simulator import Simulation
from support.experiments import experiment, population

WARM_UP = {"name": "fedavg", "schedule": {"warmup_rounds": 3}}


class Silent(Client):
    """Adds 1/64 to every parameter, but sends no tensors in the first round."""

    def __init__(self, name):
        self.number = int(name.rpartition("-")[2])

    def train(self, params, task):
        sent = {} if task.round in self.silent() else params
        return {n: v + np.float32(1 / 64) for n, v in sent.items()}, 1 + self.number, {}

    def silent(self):
        return (1,)


class SilentOnce(Silent):
    """Sends no tensors in its own round: client 0 in round 1, client 1 in the next."""

    def silent(self):
        return (self.number + 1,)


def models(described):
    """The model before the first round and after each."""
    simulation = Simulation(described)
    try:
        before = dict(simulation.params)
        return [before, *(dict(simulation.params) for _ in simulation.rounds())]
    finally:
        simulation.close()


def moved(before, after):
    """The change of every parameter, which is the same for all."""
    (by,) = {float(step) for name in before for step in np.unique(after[name] - before[name])}
    return by


def flat(**settings):
    """Three clients on a model of zeros: sums of sixty-fourths are exact."""
    described = experiment(data=population(sizes=(9, 7, 8)), client=Silent, goal=3, **settings)
    make = described.model

    def zeros():
        model = make()
        for parameter in model.parameters():
            parameter.data.zero_()
        return model

    object.__setattr__(described, "model", zeros)
    return described


def test_an_empty_round_takes_no_step_of_the_schedule():
    """Warm-up over three rounds with an empty first one: 0, 1/4 and 1/2 of the step."""
    first, empty, second, third = models(flat(rounds=3, strategy=WARM_UP))
    assert moved(first, empty) == 0
    assert moved(empty, second) == 1 / 64 / 4
    assert moved(second, third) == 1 / 64 / 2


@pytest.mark.parametrize(
    "settings",
    [
        {"aggregation": {"name": "median"}, "weighting": "uniform"},
        {"compression": {"down": {"name": "int8"}}},
        {"cohort": {"mode": "buffered", "goal": 3, "concurrency": 3}},
    ],
    ids=["each", "broadcast", "buffered"],
)
def test_an_empty_round_is_committed_without_a_change(settings):
    simulation = Simulation(flat(rounds=2, **settings))
    try:
        before = simulation.digest()
        rounds = simulation.rounds()
        record = next(rounds)
        assert (record.state, record.trained, record.accepted) == ("committed", 1, 3)
        assert simulation.digest() == before
        assert next(rounds).state == "committed"
        assert simulation.digest() != before
    finally:
        simulation.close()


def test_a_client_that_sent_no_tensors_continues_from_its_last_update():
    described = flat(rounds=4, compression={"up": {"name": "int8", "error_feedback": True}})
    object.__setattr__(described, "client", SilentOnce)
    assert [record.state for record in simulate(described, show=False).records] == ["committed"] * 4
