"""The compiled kernel agrees with the resident one up to rounding, and falls back with a reason.

The compiler takes 20 s without a cache, so most tests omit its last stage, the generation of
machine code; FEDLOOM_TEST_COMPILE=1 adds the test with it.
"""

import os
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.torch import augment
from fedloom.protocol.errors import UsageError
from fedloom.simulation.kernels import compiled
from fedloom.simulation.kernels.compiled import Compiled
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import FedProx, Plain
from support import kernels


def _mlp():
    return kernels.seeded(lambda: nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 4)))


def _agree(task, make=_mlp, **population):
    people, params = kernels.population(**population), kernels.received(make())
    one, other = (k(make(), cross_entropy, people, kernels.CPU) for k in (Resident, Compiled))
    expected = {o.client: (o, kernels.values(o)) for o in one.work(params, task, kernels.jobs())}
    for outcome in other.work(params, task, kernels.jobs()):
        theirs, values = expected[outcome.client]
        for name, value in kernels.values(outcome).items():
            assert np.abs(value - values[name]).max() < 1e-5 * np.abs(values[name]).max()
        assert outcome.training.metrics == pytest.approx(dict(theirs.training.metrics), rel=1e-5)
    return other


@pytest.fixture
def traced(monkeypatch):
    """Trace and differentiate like the compiler, then run the result without compiling."""
    count = []

    def backend(graph, _inputs):
        count.append(graph)
        return graph

    def compile_(step):
        torch._dynamo.reset()
        return torch.compile(step, backend=backend, fullgraph=True, dynamic=False)

    monkeypatch.setattr(compiled, "_compile", compile_)
    return count


@pytest.mark.long
def test_an_update_agrees_with_the_resident_kernels(traced):
    """After one compilation for all sizes of clients, learning rates and rounds."""
    kernel = _agree(kernels.task(epochs=2))
    assert kernel.note == ""
    params = kernels.received(_mlp())
    list(kernel.work(params, kernels.task(learning_rate=0.01), kernels.jobs()))
    assert len(traced) == 1


@pytest.mark.long
def test_an_update_agrees_with_fedprox_and_dropout(traced):
    """Dropout draws the same numbers."""

    def make():
        model = _mlp()
        model.insert(2, nn.Dropout(0.3))
        return model

    assert _agree(kernels.task(rule=FedProx(mu=0.5)), make).note == ""


def test_all_examples_in_one_batch_use_the_resident_step(traced):
    assert _agree(kernels.task(batch_size=0)).note == ""
    assert not traced


def test_a_failure_to_compile_falls_back_to_resident_with_the_reason(monkeypatch):
    """With the same bits."""

    def fail(*_):
        raise RuntimeError("no C++ compiler\nat all")

    monkeypatch.setattr(compiled, "_compile", lambda _step: fail)
    people, params = kernels.population(), kernels.received(_mlp())
    pair = [k(_mlp(), cross_entropy, people, kernels.CPU) for k in (Resident, Compiled)]
    ours, theirs = (
        {o.client: kernels.values(o) for o in k.work(params, kernels.task(), kernels.jobs())}
        for k in pair
    )
    assert pair[1].note == "not compiled (RuntimeError: no C++ compiler)"
    assert all(np.array_equal(ours[c][n], v) for c in theirs for n, v in theirs[c].items())


def test_unsupported_experiments_are_refused():
    """Other optimizers, other rules, buffers."""
    model = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
    assert "buffers" in Compiled.carries(model, cross_entropy, Plain(), None)
    assert "plain gradient" in Compiled.carries(_mlp(), cross_entropy, Plain(), torch.optim.Adam)
    with pytest.raises(UsageError, match="buffers"):
        Compiled(model, cross_entropy, kernels.population(), kernels.CPU)


@pytest.mark.skipif(
    not os.environ.get("FEDLOOM_TEST_COMPILE")
    or not (shutil.which("g++") or shutil.which("clang")),
    reason="set FEDLOOM_TEST_COMPILE=1 and have a C++ compiler",
)
@pytest.mark.filterwarnings("ignore")
def test_compiled_machine_code_agrees_with_the_resident_kernel():
    torch._dynamo.reset()
    assert _agree(kernels.task()).note == ""


def _cnn():
    return kernels.seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    )


@pytest.mark.skipif(
    not os.environ.get("FEDLOOM_TEST_COMPILE")
    or not (shutil.which("g++") or shutil.which("clang")),
    reason="set FEDLOOM_TEST_COMPILE=1 and have a C++ compiler",
)
@pytest.mark.filterwarnings("ignore")
def test_compiled_machine_code_agrees_on_augmented_images():
    """The same crops and flips; without them the updates differ."""
    torch._dynamo.reset()
    augmented = [augment.Crop(padding=2), augment.Flip()]
    task = kernels.task(epochs=2)
    assert _agree(task, _cnn, shape=(3, 8, 8), transform=augmented).note == ""
    params = kernels.received(_cnn())
    plain, changed = (
        Compiled(_cnn(), cross_entropy, kernels.population(shape=(3, 8, 8), transform=steps),
                 kernels.CPU)
        for steps in (None, augmented)
    )  # fmt: skip
    both = [next(iter(k.work(params, task, kernels.jobs()))) for k in (plain, changed)]
    one, other = map(kernels.values, both)
    assert any(np.abs(one[name] - other[name]).max() > 1e-3 for name in one)
