"""Clients that train a part of the model, or stop early."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.client import Client, SliceOf
from fedloom.client.torch import parameters
from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.clock.devices import Devices
from fedloom.strategies import PartialWork
from support.experiments import experiment, population

TRAIN = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
DEPARTURES = {
    "widths": {"widths": [1.0, 0.5, 0.25]},
    "tensors": {"tensor_share": 0.5},
    "only": {"only": ["2.*"]},
    "patience": {"patience": 1, "learning_rate": 2.0, "epochs": 6},
}


def _digest(**settings):
    return simulate(experiment(kernel="resident", **settings), show=False).digest


@pytest.mark.long
@pytest.mark.parametrize("name", DEPARTURES)
def test_settings_change_the_result_for_any_number_of_workers(name):
    """Each setting has an effect, the same with two workers."""
    digests = [_digest(train=TRAIN | DEPARTURES[name], workers=workers) for workers in (1, 2)]
    assert digests[0] == digests[1]
    plain = {n: value for n, value in DEPARTURES[name].items() if n in TRAIN}
    assert digests[0] != _digest(train=TRAIN | plain)


def test_full_width_has_the_bits_of_fedavg():
    full = {"widths": [1.0], "tensor_share": 1.0, "only": ["*"], "patience": 100}
    assert _digest(train=TRAIN | full) == _digest(train=TRAIN)


def test_each_coordinate_is_averaged_over_the_clients_that_cover_it():
    """A closed form: coordinates that only wide clients train are averaged over those."""
    widths = [1.0, 0.5]
    data = population(sizes=(9, 30, 12, 21))
    train = TRAIN | {"widths": widths}
    described = experiment(data=data, goal=4, rounds=1, train=train, kernel="resident")
    before = parameters(described.model())
    result = simulate(described, show=False).params
    is_wide = [PartialWork(widths=widths).width(name) == 1.0 for name in data.names]
    assert 0 < sum(is_wide) < 4
    alone = [_alone(data, client, train) for client in range(4)]
    sizes = data.sizes.astype(np.float64)
    # 8 hidden units, of which narrow clients train 4
    everyone = sum(n * a["0.bias"][:4] for n, a in zip(sizes, alone, strict=True)) / sizes.sum()
    np.testing.assert_allclose(result["0.bias"][:4], everyone, rtol=0, atol=1e-7)
    heavy = sum(n for n, wide in zip(sizes, is_wide, strict=True) if wide)
    wide = sum(n * a["0.bias"] for n, a, w in zip(sizes, alone, is_wide, strict=True) if w) / heavy
    np.testing.assert_allclose(result["0.bias"][4:], wide[4:], rtol=0, atol=1e-7)
    assert not np.array_equal(result["0.bias"][4:], before["0.bias"][4:])


def _alone(data, client, train):
    """The model after a round of only this client."""
    mine = replace(data, names=(data.names[client],), shards=(data.shards[client],))
    described = experiment(data=mine, goal=1, rounds=1, train=train, kernel="resident")
    return simulate(described, show=False).params


class Sliced(Client):
    """A user's own client: adds its number to the rows that its width covers."""

    def __init__(self, name):
        self.number = 1 + int(name.rpartition("-")[2])

    def train(self, params, task):
        new = {}
        for name, value in params.items():
            ranges = ((0, round(task.width() * len(value))), *((0, n) for n in value.shape[1:]))
            rows = value[: ranges[0][1]] + np.float32(self.number)
            new[name] = SliceOf(rows, ranges)
        return new, 1, {}


@pytest.mark.parametrize("only", [(), ("0.*",)])
def test_a_users_own_client_follows_widths_and_patterns(only):
    """Rows that all cover move by the mean of all numbers, others by that of wide clients."""
    data = population()
    train = TRAIN | {"widths": [1.0, 0.5], "only": only}
    described = experiment(data=data, client=Sliced, goal=6, rounds=1, train=train)
    before = parameters(described.model())
    after = simulate(described, show=False).params
    wide = [PartialWork(widths=[1.0, 0.5]).width(name) == 1.0 for name in data.names]
    moved = after["0.bias"] - before["0.bias"]
    np.testing.assert_allclose(moved[:4], 3.5, atol=1e-6)
    numbers = [number for number, is_wide in enumerate(wide, 1) if is_wide]
    np.testing.assert_allclose(moved[4:], np.mean(numbers), atol=1e-6)
    assert np.array_equal(after["2.bias"], before["2.bias"]) == bool(only)


@pytest.mark.parametrize(
    ("train", "settings", "message"),
    [
        ({"only": ["lora*"]}, {}, r"train.only to match tensors of the model"),
        ({"widths": [0.5]}, {"strategy": {"name": "mimelite"}}, "widths.*mimelite"),
        ({"tensor_share": 0.5}, {"strategy": {"name": "fednova"}}, "tensor_share.*fednova"),
        ({"time_budget_s": 1.0}, {}, "train.time_budget_s needs .devices."),
        ({"widths": [0.5]}, {"personal": {"keep": ["0.*"]}}, "whole models with .personal."),
        ({"widths": [0.5]}, {"kernel": "fused"}, "fused does not support train.widths"),
    ],
)
def test_incompatible_settings_are_refused(train, settings, message):
    with pytest.raises(UsageError, match=message):
        simulate(experiment(train=TRAIN | train, **settings), show=False)


@pytest.mark.parametrize(("examples_per_s", "steps"), [(4, 2), (16, 8), (1, 1), (1000, 16)])
def test_devices_stop_at_their_time_budget(examples_per_s, steps):
    """Two seconds limit the steps, in training and on the virtual clock.

    At least one step is done; two epochs of 30 examples would be sixteen steps of four examples.
    """
    speed = {"compute_examples_per_s": examples_per_s, "download_mbit_s": 8, "upload_mbit_s": 8}
    settings = {"data": population(sizes=(30,)), "goal": 1, "rounds": 1, "kernel": "resident"}
    settings["devices"] = Devices.build(speed, 1, 0)
    asked = {"steps": steps, "batch_size": 4, "learning_rate": 0.1}
    cut, planned = (
        simulate(experiment(**settings, train=train), show=False)
        for train in (TRAIN | {"time_budget_s": 2.0}, asked)
    )
    assert cut.digest == planned.digest
    assert cut.records[0].virtual_s == planned.records[0].virtual_s
