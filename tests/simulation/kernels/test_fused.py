"""The fused kernel agrees with the resident one up to rounding, and refuses unsupported models."""

import re
from itertools import pairwise

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


@pytest.fixture(params=["numba", "torch"])
def compiler(request, monkeypatch):
    """What compiles the steps of chains with ReLU; others are always compiled by torch."""
    few = fused._for_few()
    if request.param == "torch":
        monkeypatch.setattr(fused, "_for_few", lambda: None)
    elif few is None:
        pytest.skip("pip install 'fedloom[fast]'")
    return request.param


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
    monkeypatch.setattr(fused, "_for_few", lambda: None)
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
def test_an_update_agrees_with_the_resident_kernels(model, rule, dtype, compiler):
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
def test_every_length_of_training_agrees(settings, compiler):
    """The same examples in the same steps, up to rounding in float64."""
    people = kernels.population(dtype=np.float64)
    make = lambda: kernels.seeded(kernels.mlp)  # noqa: E731
    assert _difference(make, people, kernels.task(**settings), np.float64) < 1e-12


def _called(monkeypatch):
    """Records the batch sizes that numba's steps are called with."""
    called, take = [], fused._take_few

    def recorded(*args, batch_size, **settings):
        called.append(batch_size)
        take(*args, batch_size=batch_size, **settings)

    monkeypatch.setattr(fused, "_take_few", recorded)
    return called


@pytest.mark.parametrize("rule", [Plain(), FedProx(mu=0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("batch_size", [1, 2, 3, 16, 17, 31, 64])
@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2), (3, 9, 5, 6), (3, 33, 11, 7, 2)], ids=str)
def test_small_batches_agree_in_chains_of_every_size(sizes, batch_size, rule, monkeypatch):
    """Layers and batches that no block of the compiled steps divides; in float64."""
    pytest.importorskip("numba", reason="pip install 'fedloom[fast]'")
    called = _called(monkeypatch)
    people = kernels.population(
        shape=sizes[:1], sizes=(70, 1, 23, 64), classes=sizes[-1], dtype=np.float64
    )

    def make():
        layers = [part for two in pairwise(sizes) for part in (nn.Linear(*two), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    task = kernels.task(rule=rule, batch_size=batch_size, epochs=2)
    assert _difference(lambda: kernels.seeded(make), people, task, np.float64) < 1e-12
    assert set(called) == {min(batch_size, n) for n in (70, 1, 23, 64)}


@pytest.mark.parametrize("batch_size", [16, 17])
def test_large_batches_of_large_chains_are_left_to_torch(batch_size, monkeypatch):
    """By the settings alone: the bits must not depend on a measurement."""
    pytest.importorskip("numba", reason="pip install 'fedloom[fast]'")
    called = _called(monkeypatch)
    people = kernels.population(shape=(400,), sizes=(40,))
    make = lambda: kernels.seeded(  # noqa: E731
        lambda: nn.Sequential(nn.Linear(400, 90), nn.ReLU(), nn.Linear(90, 4))
    )
    kernel = Fused(make(), cross_entropy, people, kernels.CPU)
    task = kernels.task(batch_size=batch_size)
    list(kernel.work(kernels.received(make()), task, kernels.jobs(1)))
    assert called == ([16] if batch_size == 16 else [])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_input_that_is_not_finite_is_in_the_update(value, compiler):
    """No step leaves it out, even where ReLU stops every gradient: the update is refused."""
    people = kernels.population(shape=(3,), sizes=(4,), classes=2)
    people.examples.x[:, 1] = value

    def make():
        model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
        with torch.no_grad():
            model[0].weight[:, 1] = -np.sign(value) if np.isinf(value) else 1.0
        return model

    for kind in (Fused, Resident):
        model = kernels.seeded(make)
        kernel = kind(model, cross_entropy, people, kernels.CPU)
        (outcome,) = kernel.work(kernels.received(model), kernels.task(), kernels.jobs(1))
        assert any(not np.isfinite(delta).all() for delta in kernels.deltas(outcome).values())


@pytest.mark.parametrize("target", [-1, 4])
def test_a_target_that_changed_to_no_class_is_refused(target, compiler):
    """The data is checked when a kernel is made; compiled code checks no index."""
    people = kernels.population()
    kernel = Fused(kernels.seeded(kernels.mlp), cross_entropy, people, kernels.CPU)
    people.examples.y[people.shards[0][3]] = target
    params = kernels.received(kernels.seeded(kernels.mlp))
    said = {"numba": "target out of range", "torch": "out of range in self"}[compiler]
    with pytest.raises(IndexError, match=said):
        list(kernel.work(params, kernels.task(), kernels.jobs(1)))


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
