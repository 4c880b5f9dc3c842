"""The fused kernel agrees with the resident one up to rounding, and refuses unsupported models."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from fedloom.client.torch import loop
from fedloom.protocol.errors import UsageError
from fedloom.simulation import models
from fedloom.simulation.kernels import fused
from fedloom.simulation.kernels.fused import Fused
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import FedProx, Plain
from support import kernels


class Written(nn.Module):
    """A chain in a user's own forward method."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 6)
        self.b = nn.Linear(6, 4, bias=False)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.b(self.drop(functional.relu(self.a(torch.flatten(x, 1)))))


MAKERS = {
    "relu": kernels.mlp,
    "tanh": lambda: kernels.mlp(activation=nn.Tanh),
    "sigmoid": lambda: kernels.mlp(activation=nn.Sigmoid),
    "logistic": lambda: nn.Linear(12, 4),
    "nested": lambda: nn.Sequential(nn.Flatten(), kernels.mlp(), nn.Identity()),
    "written": Written,
}
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


def _difference(make, people, task, dtype):
    """The largest difference between the two kernels' values, relative to the largest value."""
    params = {n: v.astype(dtype) for n, v in kernels.received(make()).items()}
    found = []
    pair = [
        kernel(
            make().to(torch.from_numpy(np.zeros(1, dtype)).dtype),
            cross_entropy,
            people,
            kernels.CPU,
        )
        for kernel in (Fused, Resident)
    ]
    for job in kernels.jobs():
        (fused,), (resident,) = (list(kernel.work(params, task, [job])) for kernel in pair)
        assert fused.training.num_examples == resident.training.num_examples
        assert fused.training.metrics == pytest.approx(dict(resident.training.metrics), rel=1e-5)
        assert fused.evaluation == resident.evaluation
        ours, theirs = kernels.values(fused), kernels.values(resident)
        assert ours.keys() == theirs.keys()
        found += [np.abs(ours[n] - v).max() / np.abs(v).max() for n, v in theirs.items()]
        assert any(np.any(delta) for delta in kernels.deltas(fused).values())
    return max(found)


@pytest.mark.parametrize("rule", [Plain(), FedProx(mu=0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("model", MAKERS)
def test_the_compiled_steps_have_the_bits_of_the_interpreted_ones(model, rule, monkeypatch):
    """Also of a last batch that is smaller; compiling works with the torch that is installed."""
    assert fused._compiled() is not fused._train
    make = lambda: kernels.seeded(MAKERS[model])  # noqa: E731
    people, task = kernels.population(), kernels.task(rule=rule, evaluate=True)

    def trained():
        kernel = Fused(make(), cross_entropy, people, kernels.CPU)
        return list(kernel.work(kernels.received(make()), task, kernels.jobs()))

    compiled = trained()
    monkeypatch.setattr(fused, "_compiled", lambda: fused._train)
    for one, other in zip(compiled, trained(), strict=True):
        assert one.training == other.training
        ours, theirs = kernels.values(one), kernels.values(other)
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", [Plain(), FedProx(mu=0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("model", MAKERS)
def test_an_update_agrees_with_the_resident_kernels(model, rule, dtype):
    """To 1e-5 of the largest value in float32 after an epoch, to 1e-12 in float64."""
    people = kernels.population(dtype=dtype)
    task = kernels.task(rule=rule, evaluate=True)
    make = lambda: kernels.seeded(MAKERS[model])  # noqa: E731
    assert _difference(make, people, task, dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 3},
        {"epochs": None, "steps": 1},
        {"epochs": None, "steps": 11},
        {"batch_size": 0, "epochs": 3},
        {"batch_size": 1000},
    ],
)
def test_every_length_of_training_agrees(settings):
    """The same examples in the same steps, up to rounding in float64."""
    people = kernels.population(dtype=np.float64)
    make = lambda: kernels.seeded(kernels.mlp)  # noqa: E731
    assert _difference(make, people, kernels.task(**settings), np.float64) < 1e-12


def test_an_update_depends_on_no_other_job():
    people = kernels.population()
    params, task = kernels.received(kernels.seeded(kernels.mlp)), kernels.task()
    kernel = Fused(kernels.seeded(kernels.mlp), cross_entropy, people, kernels.CPU)
    together = {o.client: kernels.values(o) for o in kernel.work(params, task, kernels.jobs())}
    for job in kernels.jobs()[::-1]:
        (outcome,) = kernel.work(params, task, [job])
        ours = kernels.values(outcome)
        assert all(np.array_equal(ours[n], v) for n, v in together[job.client].items())


class Branching(nn.Module):
    """Its output depends on a condition on the data."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else -self.a(x)


class Residual(nn.Module):
    """Uses its input twice."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 12)
        self.b = nn.Linear(12, 4)

    def forward(self, x):
        return self.b(self.a(x) + x)


def _frozen():
    model = kernels.mlp()
    model[0].requires_grad_(requires_grad=False)
    return model


def _hooked():
    model = kernels.mlp()
    model[0].register_forward_hook(lambda *_: None)
    return model


def _shared():
    layer = nn.Linear(12, 12)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(12, 4))


class Spare(nn.Sequential):
    """Has a parameter that no layer uses."""

    def __init__(self):
        super().__init__(nn.Linear(12, 4))
        self.spare = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Branching, "cannot be traced"),
        (Residual, "plain chain|does not know add"),
        (_frozen, "frozen"),
        (_hooked, "Linear has hooks"),
        (_shared, "different weights"),
        (Spare, "parameters beyond"),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4)), "buffers"),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.ReLU()), "at the end"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(12, 4)), "before each relu"),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5), nn.Linear(4, 4)), "Dropout"),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.GELU(), nn.Linear(4, 4)), "GELU"),
        (lambda: kernels.mlp().half(), "float16"),
        (nn.Identity, "at the end"),
    ],
)
def test_a_model_that_is_no_chain_is_refused_with_the_reason(make, reason):
    """By `carries` and by the constructor."""
    model = make()
    assert re.search(reason, Fused.carries(model, cross_entropy, Plain(), None))
    with pytest.raises(UsageError, match=reason):
        Fused(model, cross_entropy, kernels.population(), kernels.CPU)


def test_other_losses_optimizers_and_rules_are_refused():
    class Mine(Plain):
        name = "mine"

    model = kernels.mlp()
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert Fused.carries(model, nn.CrossEntropyLoss(), Plain(), loop.SGD) == ""
    assert "only the loss cross_entropy" in Fused.carries(model, smooth, Plain(), None)
    assert "only the loss cross_entropy" in Fused.carries(model, functional.mse_loss, Plain(), None)
    assert "plain gradient descent" in Fused.carries(
        model, cross_entropy, Plain(), torch.optim.Adam
    )
    assert "not 'mine'" in Fused.carries(model, cross_entropy, Mine(), None)
    kernel = Fused(model, cross_entropy, kernels.population(), kernels.CPU)
    with pytest.raises(UsageError, match="not 'mine'"):
        list(kernel.work(kernels.received(model), kernels.task(rule=Mine()), kernels.jobs()))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"shape": (3, 4)}, "inputs have shape"),
        ({"shape": (13,)}, "inputs have shape"),
        ({"classes": 9}, "from 0 to 3"),
        ({"places": (2,)}, "one class number"),
        ({"dtype": np.float64}, "inputs are float64"),
    ],
)
def test_data_that_does_not_fit_the_chain_is_refused(data, reason):
    people = kernels.population(**data)
    assert reason in Fused.carries(kernels.mlp(), cross_entropy, Plain(), None, people)


def test_named_networks_of_linear_layers_are_supported():
    for name, settings in (("logistic", {}), ("2nn", {}), ("mlp", {"hidden": [5]})):
        model = models.build(name, input_shape=(1, 3, 4), num_classes=4, **settings)
        people = kernels.population(shape=(1, 3, 4))
        assert Fused.carries(model, cross_entropy, Plain(), None, people) == ""
