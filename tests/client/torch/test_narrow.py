"""Narrower copies of networks, with the leading units of hidden layers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client import Kind, SliceOf, Task, Weighting
from fedloom.client.torch import TorchClient, parameters
from fedloom.client.torch.narrow import narrowed
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Plain, RoundSettings


def _network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 10, bias=False),
        nn.BatchNorm1d(10),
        nn.Tanh(),
        nn.Linear(10, 4),
    )


def test_hidden_layers_keep_their_leading_units():
    """Every value of the copy equals the network's at the stated ranges."""
    network = _network()
    whole = parameters(network)
    sent = narrowed(network, 0.5).parameters(frozenset(whole))
    assert sent.keys() == whole.keys()
    shapes = {n: v.values.shape if isinstance(v, SliceOf) else v.shape for n, v in sent.items()}
    assert shapes["0.0.weight"] == (3, 3, 3, 3)
    assert shapes["0.1.running_var"] == (3,)
    assert shapes["2.weight"] == (5, 27)  # three channels of nine values each
    assert shapes["3.bias"] == (5,)
    assert shapes["5.weight"] == (4, 5)
    assert shapes["5.bias"] == (4,)
    for name, value in sent.items():
        if isinstance(value, SliceOf):
            np.testing.assert_array_equal(
                value.values, whole[name][tuple(slice(a, b) for a, b in value.ranges)]
            )
        else:
            np.testing.assert_array_equal(value, whole[name])


def test_a_copy_equals_the_network_with_the_other_units_at_zero():
    """The outputs are equal if the weights set the dropped units to zero."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    narrow = narrowed(network, 0.5).module
    with torch.no_grad():
        network[2].weight[:, 2:] = 0
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(narrow.eval()(x), network.eval()(x))
    torch.testing.assert_close(narrow.train()(x), network.train()(x))


def test_normalisation_statistics_have_the_same_scale_at_all_widths():
    """In training, a narrow layer's output is divided by its width before normalisation."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=1.0), nn.Linear(4, 2))
    narrow = narrowed(network, 0.5).module
    x = torch.randn(50, 3)
    narrow.train()(x)
    expected = network[0](x)[:, :2].detach() / 0.5
    torch.testing.assert_close(narrow[1].running_mean, expected.mean(dim=0))
    torch.testing.assert_close(narrow[1].running_var, expected.var(dim=0))


def test_training_the_copy_does_not_change_the_network():
    """The copy has its own tensors."""
    network = _network()
    before = {name: value.copy() for name, value in parameters(network).items()}
    narrow = narrowed(network, 0.3).module
    narrow(torch.randn(4, 3, 8, 8)).sum().backward()
    with torch.no_grad():
        for param in narrow.parameters():
            param.sub_(param.grad)
    assert all(np.array_equal(before[n], value) for n, value in parameters(network).items())


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "LayerNorm at '1'"),
        (nn.TransformerEncoderLayer(4, 2), "TransformerEncoderLayer at ''"),
        (
            nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 2, 1)),
            "groups.*got 2 groups at '0'",
        ),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)), "multiple of the 4 units below, got 5"),
    ],
)
def test_unsupported_networks_are_refused(network, message):
    """The error names the layer."""
    with pytest.raises(UsageError, match=message):
        narrowed(network, 0.5)


def _task(**settings):
    settings = {"epochs": 1, "steps": None, "batch_size": 4, "learning_rate": 0.1, **settings}
    return Task(
        run="r",
        round=1,
        kind=Kind.TRAIN,
        settings=RoundSettings(**settings),
        rule=Plain(),
        config={},
        seed=1,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        client="site-a",
    )


def test_a_device_can_set_its_width():
    """It overrides the run's widths; the dropped units are not sent."""
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    data = torch.randn(12, 3), torch.randint(0, 2, (12,))
    received = {name: value.copy() for name, value in parameters(network).items()}
    client = TorchClient(network, data, cross_entropy, width=0.25)
    sent, _, _ = client.train(received, _task(widths=(1.0,)))
    assert sent["0.weight"].ranges == ((0, 2), (0, 3))
    assert (sent["0.weight"].values != received["0.weight"][:2]).any()
    assert sent["2.bias"].shape == (2,)
    whole, _, _ = TorchClient(network, data, cross_entropy).train(received, _task())
    assert whole["0.weight"].shape == (8, 3)


def test_local_tensors_need_the_full_width():
    """A narrow copy has no place for them."""
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    data = torch.randn(12, 3), torch.randint(0, 2, (12,))
    client = TorchClient(
        network,
        data,
        cross_entropy,
        width=0.5,
        send=lambda name: name.startswith("0"),
        keep_local=True,
    )
    with pytest.raises(UsageError, match=r"local tensors with a width of 0\.5, got '2\.bias'"):
        client.train(dict(parameters(network)), _task())
