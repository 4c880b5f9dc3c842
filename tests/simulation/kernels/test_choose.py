"""`auto` follows fixed rules and gives a reason; an unsuitable kernel is refused with advice."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.protocol.errors import UsageError
from fedloom.simulation import models
from fedloom.simulation.kernels import choose
from fedloom.strategies import Plain
from support import kernels

CUDA = torch.device("cuda")
CNN = models.build("digits-cnn", input_shape=(8, 8), num_classes=4)
NORMED = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
WIDE = nn.Sequential(nn.Linear(12, 400_000), nn.Linear(400_000, 4))


def _choose(kernel, model, device=kernels.CPU, optimizer=None, people=None):
    return choose.choose(kernel, model, cross_entropy, Plain(), optimizer, device, people)


@pytest.mark.parametrize(
    ("model", "device", "name", "why"),
    [
        (kernels.mlp(), kernels.CPU, "fused", "chain of linear layers"),
        (NORMED, kernels.CPU, "resident", "buffers; batching clients is faster only on GPUs"),
        (CNN, kernels.CPU, "channels-last", "convolutions are faster with channels last on a CPU"),
        (CNN, CUDA, "batched", "leave a GPU idle"),
        (kernels.mlp(), CUDA, "batched", "leave a GPU idle"),
        (NORMED, CUDA, "resident", "buffers; BatchNorm1d depends on"),
        (WIDE, CUDA, "fused", "chain of linear layers"),
    ],
)
def test_auto_chooses_by_model_and_device(model, device, name, why):
    choice = _choose("auto", model, device)
    assert (choice.name, why in choice.why) == (name, True)


def test_auto_considers_the_data_and_the_optimizer():
    model = kernels.mlp()
    assert _choose("auto", model, people=kernels.population()).name == "fused"
    assert _choose("auto", model, people=kernels.population(classes=9)).name == "resident"
    assert _choose("auto", model, optimizer=torch.optim.Adam).name == "resident"


@pytest.mark.parametrize("name", choose.KERNELS)
def test_a_kernel_is_chosen_by_name(name):
    model = CNN if name == "channels-last" else kernels.mlp()
    device = CUDA if name == "graphed" else kernels.CPU
    assert _choose(name, model, device) == choose.Choice(name, "set by engine.kernel")


def test_a_kernel_that_does_not_support_the_model_is_refused_with_advice():
    with pytest.raises(UsageError, match=r"'fused' .*does not support.*\"resident\""):
        _choose("fused", CNN)
    with pytest.raises(UsageError, match=r"graphed needs a CUDA device, not cpu.*\"resident\""):
        _choose("graphed", kernels.mlp())
    with pytest.raises(UsageError, match="among auto, resident, channels-last, fused, compiled"):
        _choose("fast", CNN)
