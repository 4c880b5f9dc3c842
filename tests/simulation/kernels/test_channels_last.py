"""The channels-last kernel agrees with the resident one up to rounding."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.protocol.errors import UsageError
from fedloom.simulation import models
from fedloom.simulation.kernels.channels_last import ChannelsLast
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import FedProx, Plain
from support import kernels

IMAGE = (3, 8, 8)


def _cnn():
    return models.build("digits-cnn", input_shape=IMAGE, num_classes=4)


def _normed():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )


@pytest.mark.parametrize("make", [_cnn, lambda: kernels.seeded(_normed)], ids=["cnn", "normed"])
@pytest.mark.parametrize("rule", [Plain(), FedProx(mu=0.5)], ids=lambda rule: rule.name)
def test_an_update_agrees_with_the_resident_kernels(make, rule):
    people = kernels.population(shape=IMAGE, sizes=(23, 20, 8, 42))
    params = kernels.received(make())
    task = kernels.task(rule=rule, evaluate=True)
    both = [k(make(), cross_entropy, people, kernels.CPU) for k in (Resident, ChannelsLast)]
    for job in kernels.jobs():
        (one,), (other,) = (list(kernel.work(params, task, [job])) for kernel in both)
        expected, got = kernels.values(one), kernels.values(other)
        assert {n: a.shape for n, a in got.items()} == {n: a.shape for n, a in expected.items()}
        for name, value in got.items():
            assert np.abs(value - expected[name]).max() <= 1e-5 * np.abs(expected[name]).max()
        assert other.training.metrics == pytest.approx(dict(one.training.metrics), rel=1e-4)
        assert other.evaluation.metrics == pytest.approx(dict(one.evaluation.metrics), rel=1e-4)


def test_weights_have_channels_last_in_memory():
    people = kernels.population(shape=IMAGE)
    kernel = ChannelsLast(_cnn(), cross_entropy, people, kernels.CPU)
    convolution = next(m for m in kernel.model.modules() if isinstance(m, nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)


def test_no_state_of_an_earlier_client_is_left():
    """The same job gives the same bits, alone or after others."""
    people = kernels.population(shape=IMAGE)
    params = kernels.received(_cnn())
    kernel = ChannelsLast(_cnn(), cross_entropy, people, kernels.CPU)
    first, *_, last = kernels.jobs()
    (alone,) = [kernels.values(o) for o in kernel.work(params, kernels.task(), [last])]
    *_, after = [kernels.values(o) for o in kernel.work(params, kernels.task(), [first, last])]
    assert all(alone[name].tobytes() == after[name].tobytes() for name in alone)


class _Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.convolution(x).view(len(x), -1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [(kernels.mlp(), "no convolution"), (_Own(), "does not support _Own")],
    ids=["mlp", "own"],
)
def test_an_unsupported_model_is_refused(model, reason):
    people = kernels.population(shape=IMAGE)
    with pytest.raises(UsageError, match=f"ChannelsLast cannot train this: .*{reason}"):
        ChannelsLast(model, cross_entropy, people, kernels.CPU)
