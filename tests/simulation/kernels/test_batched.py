"""The batched kernel agrees with the resident one up to rounding, for clients of any sizes."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from fedloom.client.torch import loop
from fedloom.protocol.errors import UsageError
from fedloom.simulation import models
from fedloom.simulation.kernels import batched
from fedloom.simulation.kernels.base import ClientJob
from fedloom.simulation.kernels.batched import Batched
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import FedProx, Plain
from support import kernels


def _agree(make, people, task, *, loss=cross_entropy, jobs=None, tolerance=1e-12):
    """Compare both kernels' updates, in float64."""
    params = {
        n: v.astype(np.float64) if v.dtype.kind == "f" else v
        for n, v in kernels.received(make()).items()
    }
    one, many = (
        kernel(make().double(), loss, people, kernels.CPU) for kernel in (Resident, Batched)
    )
    jobs = jobs or kernels.jobs()
    outcomes = list(many.work(params, task, jobs))
    assert sorted(o.client for o in outcomes) == sorted(job.client for job in jobs)
    found = {o.client: o for o in outcomes}
    for job in jobs:
        (expected,) = one.work(params, task, [job])
        ours, theirs = kernels.values(found[job.client]), kernels.values(expected)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert np.abs(ours[name] - value).max() < tolerance
        assert found[job.client].training.num_examples == expected.training.num_examples
        for name, value in expected.training.metrics.items():
            assert found[job.client].training.metrics[name] == pytest.approx(value, rel=1e-9)
        assert found[job.client].training.metrics.keys() == expected.training.metrics.keys()
        assert found[job.client].evaluation == expected.evaluation


IMAGE = (1, 8, 8)


def _cnn():
    return models.build("digits-cnn", input_shape=IMAGE, num_classes=4)


def _mlp():
    return kernels.seeded(kernels.mlp)


def _normed():
    """Layer normalisation uses one example at a time; one layer is not trained."""
    model = kernels.seeded(
        lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
    )
    model[0].requires_grad_(requires_grad=False)
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("scale", torch.ones(2))
    return model


@pytest.mark.long
@pytest.mark.parametrize("rule", [Plain(), FedProx(mu=0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize(
    ("make", "shape"),
    [(_mlp, (12,)), (_cnn, IMAGE), (_normed, (12,))],
    ids=["mlp", "cnn", "normed"],
)
def test_an_update_agrees_with_the_resident_kernels(make, shape, rule):
    """To 1e-12 in float64: values, metrics and evaluation of four clients of unequal sizes."""
    people = kernels.population(shape=shape, dtype=np.float64)
    _agree(make, people, kernels.task(rule=rule, evaluate=True, epochs=2))


@pytest.mark.parametrize(
    "length",
    [
        {"epochs": None, "steps": 7},
        {"epochs": None, "steps": 1, "batch_size": 0},
        {"epochs": 3, "batch_size": 0},
        {"batch_size": 1000},
    ],
)
def test_every_length_of_training_agrees(length):
    """Also with batches larger than any shard."""
    _agree(_mlp, kernels.population(dtype=np.float64), kernels.task(**length))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 7), st.integers(1, 3))
@settings(max_examples=15)
def test_padding_changes_nothing(sizes, batch_size, group):
    people = kernels.population(shape=(3,), sizes=sizes, held_out=False, dtype=np.float64)
    make = lambda: kernels.seeded(lambda: nn.Linear(3, 4))  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "_MAX_GROUP", group)
        jobs = [ClientJob(client, 5 * client) for client in reversed(range(len(sizes)))]
        _agree(make, people, kernels.task(batch_size=batch_size), jobs=jobs)


def test_float32_agrees_within_the_stated_tolerance():
    """1e-5 of the largest value after two epochs."""
    people, make = kernels.population(), _mlp
    params = kernels.received(make())
    task = kernels.task(epochs=2)
    one, many = (k(make(), cross_entropy, people, kernels.CPU) for k in (Resident, Batched))
    expected = {o.client: kernels.values(o) for o in one.work(params, task, kernels.jobs())}
    for outcome in many.work(params, task, kernels.jobs()):
        for name, value in kernels.values(outcome).items():
            theirs = expected[outcome.client][name]
            assert np.abs(value - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_ignored_positions_and_squared_errors_agree():
    """Targets of −100 have weight 0; targets that are values have no accuracy."""
    people = kernels.population(dtype=np.float64)
    people.examples.y[::9] = -100
    _agree(_mlp, people, kernels.task())
    people = kernels.population(dtype=np.float64, places=(4,))
    object.__setattr__(people.examples, "y", people.examples.y.astype(np.float64))
    object.__setattr__(people.test, "y", people.test.y.astype(np.float64))
    _agree(_mlp, people, kernels.task(evaluate=True), loss=mse_loss)


def test_a_task_that_only_evaluates_trains_no_client():
    kernel = Batched(_mlp(), cross_entropy, kernels.population(), kernels.CPU)
    task = kernels.task(train=False, evaluate=True)
    outcomes = list(kernel.work(kernels.received(_mlp()), task, kernels.jobs()))
    assert [outcome.evaluation.num_examples for outcome in outcomes] == [0, 3, 6, 9]
    assert not any(outcome.parts for outcome in outcomes)


class Branching(nn.Linear):
    """Its output depends on a condition on the data."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


class Centred(nn.Linear):
    """Its output depends on the whole batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


class Noisy(nn.Linear):
    """Draws random numbers."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Counting(nn.Linear):
    """Counts its calls in a buffer."""

    def __init__(self, wide, classes):
        super().__init__(wide, classes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


def _shared():
    layer = nn.Linear(12, 12)
    last = nn.Linear(12, 12)
    last.weight = layer.weight
    return nn.Sequential(layer, last)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4)), "BatchNorm1d depends on"),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.1)), "Dropout needs separate random"),
        (lambda: nn.LSTM(12, 4), "LSTM cannot be batched"),
        (lambda: nn.Linear(12, 4).requires_grad_(requires_grad=False), "no parameter to train"),
        (_shared, "shares a parameter"),
        (lambda: Branching(12, 4), "cannot batch the model over clients"),
        (lambda: Centred(12, 4), "other examples of its batch"),
        (lambda: Noisy(12, 4), "cannot batch the model over clients"),
        (lambda: Counting(12, 4), "changes its buffers"),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.Flatten(0)), "one output for each example"),
    ],
)
def test_a_model_that_cannot_be_batched_is_refused_with_the_reason(make, reason):
    """Model and torch's generator are not changed."""
    model, people = make(), kernels.population()
    before = kernels.received(model)
    torch.manual_seed(3)
    found = Batched.carries(model, cross_entropy, Plain(), None, people)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), drawn)
    assert re.search(reason, found)
    assert all(np.array_equal(before[n], v) for n, v in kernels.received(model).items())
    with pytest.raises(UsageError, match=reason):
        Batched(model, cross_entropy, people, kernels.CPU)


def test_other_losses_and_optimizers_are_refused():
    model = kernels.mlp()
    carries = Batched.carries
    assert carries(model, nn.MSELoss(), FedProx(mu=1.0), loop.SGD) == ""
    assert "losses cross_entropy and mse" in carries(model, l1_loss, Plain(), None)
    assert "plain gradient descent" in carries(model, cross_entropy, Plain(), torch.optim.Adam)
