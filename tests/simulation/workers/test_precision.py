"""Arithmetic by setting: what changes, and what is refused."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client import Client
from fedloom.protocol.errors import UsageError
from fedloom.simulation.experiment import EngineSettings
from fedloom.simulation.training.simulator import Simulation, settings_digest
from fedloom.simulation.workers.precision import check_precision, lowered, set_precision
from fedloom.simulation.workers.setup import plan
from support.experiments import experiment


def run(precision, **settings):
    """The model's values and the digest after three rounds."""
    described = experiment(**settings)
    described = replace(described, engine=replace(described.engine, precision=precision))
    simulation = Simulation(described)
    try:
        list(simulation.rounds())
        values = np.concatenate([array.ravel() for array in simulation.params.values()])
        return values, simulation.digest(), simulation.worker_setup.kernel
    finally:
        simulation.close()


@pytest.mark.parametrize("kernel", ["resident", "batched"])
def test_bf16_changes_bits_and_little_else(kernel):
    """Relative to the largest weight, by less than its 8 bits would in some steps."""
    exact, digest, *_ = run("float32", kernel=kernel)
    coarse, other, *_ = run("bf16", kernel=kernel)
    assert digest != other
    assert 0 < np.abs(coarse - exact).max() < 0.05 * np.abs(exact).max()


def test_bf16_has_the_same_bits_for_one_and_two_workers():
    assert run("bf16")[1] == run("bf16", workers=2)[1]


def test_auto_chooses_a_kernel_that_supports_bf16():
    """The fused kernel never calls the model."""
    assert run("float32")[2] == "fused"
    assert run("bf16")[2] == "resident"


def test_kernels_that_cannot_multiply_in_bf16_are_refused():
    with pytest.raises(UsageError, match=r"fused does not support engine\.precision"):
        run("bf16", kernel="fused")


def test_tf32_is_refused_on_a_cpu():
    with pytest.raises(UsageError, match='"tf32" needs a GPU'):
        run("tf32")


def test_the_precision_is_shown_beside_the_kernel():
    described = experiment()
    lower = replace(described, engine=replace(described.engine, precision="bf16"))
    assert plan(lower)["kernel"].endswith("; products in bf16")
    assert "products" not in plan(described)["kernel"]


def test_clients_own_code_chooses_its_arithmetic():
    with pytest.raises(UsageError, match=r"with \[client\], got 'bf16'"):
        run("bf16", client=lambda name: Client())


def test_an_unknown_precision_is_refused():
    with pytest.raises(UsageError, match=r"known engine\.precision, got 'fp16'"):
        EngineSettings(precision="fp16")


def test_a_simulation_resumes_with_its_own_precision_only():
    described = experiment()
    lower = replace(described, engine=replace(described.engine, precision="bf16"))
    assert settings_digest(described) != settings_digest(lower)


def test_a_lowered_model_keeps_its_names_and_its_copies_are_independent():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    names = list(model.state_dict())
    assert list(lowered(model).state_dict()) == names
    copy, x = deepcopy(model), torch.rand(4, 3)
    with torch.no_grad():
        before = model(x).clone()
        copy[0].weight.zero_()
        copy[0].bias.zero_()
        assert torch.equal(model(x), before)
        assert not copy(x).any()
    assert before.dtype == torch.float32
    assert torch.equal(before, before.to(torch.bfloat16).float())


def test_an_old_gpu_is_refused(monkeypatch):
    """As far as it can be told without one."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(UsageError, match=r"capability 8\.0 or higher; Old has less"):
        check_precision("bf16", torch.device("cuda"), own_code=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    check_precision("bf16", torch.device("cuda"), own_code=False)


def test_the_settings_of_a_gpu_can_be_set():
    """PyTorch accepts them without one; they are put back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    deterministic = cudnn.deterministic
    try:
        set_precision("tf32", torch.device("cuda"))
        assert (matmul.fp32_precision, cudnn.conv.fp32_precision) == ("tf32", "tf32")
        set_precision("float32", torch.device("cuda"))
        assert (matmul.fp32_precision, cudnn.conv.fp32_precision) == ("ieee", "ieee")
        assert cudnn.deterministic
    finally:
        matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before
        cudnn.deterministic = deterministic
