"""Layers of `direct` train like with autograd, for any network."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.torch import loop
from fedloom.simulation import models
from fedloom.simulation.kernels import direct
from fedloom.simulation.kernels.channels_last import ChannelsLast
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import FedProx, Plain
from support import kernels

WIDE = 512
"""A square weight of this width is large enough for products."""


def _chain(**bias):
    return nn.Sequential(
        nn.Linear(12, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE, **bias), nn.Tanh(), nn.Linear(WIDE, 4)
    )


def _twice():
    layer = nn.Linear(WIDE, WIDE)
    return nn.Sequential(nn.Linear(12, WIDE), layer, nn.Tanh(), layer, nn.Linear(WIDE, 4))


def _tied():
    one, other = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
    other.weight = one.weight
    return nn.Sequential(nn.Linear(12, WIDE), one, nn.Tanh(), other, nn.Linear(WIDE, 4))


def _same_memory():
    one, other = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
    other.weight.data = one.weight.data
    return nn.Sequential(nn.Linear(12, WIDE), one, nn.Tanh(), other, nn.Linear(WIDE, 4))


def _frozen():
    model = _chain()
    model[2].weight.requires_grad_(False)
    return model


def _first_frozen():
    model = _chain()
    model[0].requires_grad_(False)
    return model


def _nested():
    inner = nn.Sequential(nn.Linear(12, WIDE), nn.ReLU())
    return nn.Sequential(inner, nn.Sequential(nn.Linear(WIDE, WIDE)), nn.Linear(WIDE, 4))


def _places():
    return nn.Sequential(
        nn.Unflatten(1, (3, 4)), nn.Linear(4, WIDE), nn.Linear(WIDE, WIDE), nn.Flatten(),
        nn.Linear(3 * WIDE, 4),
    )  # fmt: skip


def _images():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 4),
    )  # fmt: skip


NETWORKS = {
    "chain": _chain,
    "no-bias": lambda: _chain(bias=False),
    "twice": _twice,
    "tied": _tied,
    "same-memory": _same_memory,
    "frozen": _frozen,
    "first-frozen": _first_frozen,
    "nested": _nested,
    "places": _places,
    "images": _images,
}


def _trained(module, optimizer, dtype, batch):
    """The model's tensors by name after a few steps."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(3 * batch, 12, generator=rng, dtype=dtype)
    y = torch.randint(0, 4, (3 * batch,), generator=rng)
    stepper = optimizer([p for p in module.parameters() if p.requires_grad], lr=0.1)
    torch.manual_seed(2)  # for dropout
    for inputs, targets in zip(x.split(batch), y.split(batch), strict=True):
        stepper.zero_grad()
        cross_entropy(module(inputs), targets).backward()
        stepper.step()
    return {name: param.detach().clone() for name, param in module.named_parameters()}


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("batch", [1, 10, 40])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_trains_like_with_autograd(network, batch, dtype, least):
    """For few, some and many inputs; weights that are shared, used twice, frozen or batched."""
    make = NETWORKS[network]
    usual, model = (kernels.seeded(make).to(dtype) for _ in range(2))
    found = direct.of(model, cross_entropy)
    expected = _trained(usual, loop.SGD, dtype, batch)
    got = _trained(found, found.descent, dtype, batch)
    assert list(got) == list(expected) == [name for name, _ in model.named_parameters()]
    for name, value in got.items():
        assert (value - expected[name]).abs().max() <= least * expected[name].abs().max()


def _ways(values):
    """The same values in memory of several kinds."""
    wide = torch.zeros(len(values), 2 * values.shape[1])
    wide[:, ::2] = values
    shifted = torch.zeros(values.numel() + 1)[1:].reshape(values.shape).copy_(values)
    return values, values.t().contiguous().t(), wide[:, ::2], shifted


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("batch", [1, 4, 5, 10, 33])
@pytest.mark.parametrize(("inner", "outer"), [(3136, 512), (512, 600), (17, 5)])
def test_products_are_those_of_float64_within_rounding(onednn, batch, inner, outer, monkeypatch):
    """Against float64, for values anywhere in memory; and the same bits however often."""
    if onednn and not direct._has_onednn():
        pytest.skip("PyTorch has no oneDNN here")
    monkeypatch.setattr(direct, "_has_onednn", lambda: onednn)
    rng = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, inner, generator=rng)
    weight, bias = torch.randn(outer, inner, generator=rng), torch.randn(outer, generator=rng)
    wanted = x.double() @ weight.double().t()
    least = 4 * inner**0.5 * torch.finfo(torch.float32).eps * (x.abs() @ weight.abs().t()).max()
    for some in _ways(x):
        for weights in _ways(weight):
            got = direct._times(some, weights, bias)
            assert (got - (wanted + bias)).abs().max() <= least
            assert torch.equal(got, direct._times(some, weights, bias))
            assert (direct._times(some, weights, None) - wanted).abs().max() <= least
    row = x[:1].expand(batch, inner)  # as a sum's gradient
    assert (direct._times(row, weight, None) - wanted[:1]).abs().max() <= least


def test_a_large_weight_never_has_a_gradient():
    model = kernels.seeded(_chain)
    found = direct.of(model, cross_entropy)
    cross_entropy(found(torch.randn(10, 12)), torch.zeros(10, dtype=torch.int64)).backward()
    having = [name for name, param in model.named_parameters() if param.grad is not None]
    assert having == ["0.weight", "0.bias", "2.bias", "4.weight", "4.bias"]
    assert [weight is model[2].weight for weight, _, _ in found.products.waiting] == [True]


@pytest.mark.parametrize("make", [_chain, _twice, _tied])
def test_a_step_is_taken_once(make):
    """Waiting products are cleared by a step and by zero_grad; so is what a backward pass took."""
    model = kernels.seeded(make)
    found = direct.of(model, cross_entropy)
    stepper = found.descent(model.parameters(), lr=0.1)

    def go_back():
        cross_entropy(found(torch.ones(9, 12)), torch.zeros(9, dtype=torch.int64)).backward()

    for forget in (stepper.step, stepper.zero_grad):
        go_back()
        assert found.products.waiting
        forget()
        assert not found.products.waiting
    before = [param.detach().clone() for param in model.parameters()]
    go_back()  # of a step that zero_grad began
    assert bool(found.products.waiting) == (make is not _chain)
    stepper.step()
    after = [param.detach().clone() for param in model.parameters()]
    stepper.step()  # the gradients of the others once more
    wide = [param.shape == (WIDE, WIDE) for param in model.parameters()]
    for is_wide, one, two, three in zip(wide, before, after, model.parameters(), strict=True):
        assert not torch.equal(one, two)
        assert torch.equal(two, three) == is_wide


def test_a_step_in_the_backward_pass_changes_no_bits():
    """Beside one that is taken when the pass is over."""
    got = []
    for begins in (True, False):
        model = kernels.seeded(_cnn)
        found = direct.of(model, cross_entropy)
        stepper = found.descent(model.parameters(), lr=0.1)
        rng = torch.Generator().manual_seed(1)
        for _ in range(3):
            images = torch.randn(7, *SHAPE, generator=rng)
            stepper.zero_grad()
            if not begins:
                found.products.rate = None
            cross_entropy(found(images), torch.arange(7) % 4).backward()
            assert bool(found.products.waiting) != begins
            stepper.step()
        got.append([param.detach().clone() for param in model.parameters()])
    assert all(map(torch.equal, *got))


def test_relu_after_the_maximum_changes_no_bits():
    """Where the maxima before and after ReLU differ in place, the gradient is zero."""
    images = torch.randn(6, 3, 9, 9)
    images[0], images[1, :, ::2] = -1, 1  # no value above zero, and ties
    both = [
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten())
        for _ in range(2)
    ]
    both[1].load_state_dict(both[0].state_dict())
    found = direct.of(both[1], cross_entropy)
    assert [type(step) for step in found._steps[1:3]] == [nn.MaxPool2d, nn.ReLU]
    for network in (both[0], found):
        network(images).square().sum().backward()
    for one, other in zip(both[0].parameters(), both[1].parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


class _Own(nn.Sequential):
    pass


def _own_loss(output, y):
    return cross_entropy(output, y)


class _OwnLoss(nn.CrossEntropyLoss):
    pass


def _watched(what):
    model = _chain()
    match what:
        case "layer":
            model[2].register_forward_hook(lambda *_: None)
        case "inputs":
            model.register_forward_pre_hook(lambda *_: None)
        case "gradients":
            model[2].register_full_backward_hook(lambda *_: None)
        case "tensor":
            model[2].weight.register_hook(lambda grad: grad * 2)
        case "sum":
            model[2].weight.register_post_accumulate_grad_hook(lambda _: None)
        case "forward":
            model[2].forward = torch.relu
    return model


@pytest.mark.parametrize("what", ["layer", "inputs", "gradients", "tensor", "sum", "forward"])
def test_models_with_hooks_are_not_changed(what):
    assert direct.of(_watched(what), cross_entropy) is None


def test_only_pytorch_sequences_and_losses_are_accepted():
    assert direct.of(_Own(nn.Linear(12, 4)), cross_entropy) is None
    assert direct.of(nn.Linear(12, 4), cross_entropy) is None
    assert direct.of(_chain(), _own_loss) is None
    assert direct.of(_chain(), _OwnLoss()) is None
    assert direct.of(_chain(), nn.CrossEntropyLoss(label_smoothing=0.1)) is not None


SHAPE = (1, 32, 32)


def _half(params, *, lr):
    return loop.SGD(params, lr=lr / 2)


def _cnn():
    return models.build("cnn", input_shape=SHAPE, num_classes=4)


def _updates(kernel, rule=None, optimizer=None, **settings):
    people = kernels.population(shape=SHAPE, sizes=(24, 13))
    worker = kernel(_cnn(), cross_entropy, people, kernels.CPU, optimizer)
    task = kernels.task(rule=rule, batch_size=8, **settings)
    jobs = kernels.jobs(2)
    return [kernels.deltas(o) for o in worker.work(kernels.received(_cnn()), task, jobs)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({}, True),
        ({"rule": FedProx(mu=0.5)}, False),
        ({"optimizer": _half}, False),
        ({"clip_norm": 0.5}, False),
        ({"only": ("7.*",)}, False),
    ],
    ids=["plain", "fedprox", "optimizer", "clipped", "only"],
)
def test_clients_of_a_large_network_agree_with_the_resident_kernels(asked, taken, monkeypatch):
    """Whether gradients are needed or not; within rounding."""
    calls = []
    step = direct.Descent.step
    monkeypatch.setattr(direct.Descent, "step", lambda self: (calls.append(1), step(self)))
    got = _updates(ChannelsLast, **asked)
    expected = _updates(Resident, **asked)
    assert bool(calls) == taken
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert abs(value - other[name]).max() <= 1e-4 * abs(other[name]).max()


def test_products_of_a_failed_training_are_dropped():
    people = kernels.population(shape=SHAPE, sizes=(24, 13))
    worker = ChannelsLast(_cnn(), cross_entropy, people, kernels.CPU)
    params, task = kernels.received(_cnn()), kernels.task(rule=Plain(), batch_size=8)
    (first,) = [kernels.values(o) for o in worker.work(params, task, kernels.jobs(1))]
    weight = torch.ones(512, 4096)
    worker._direct.products.waiting.append((weight, torch.ones(8, 512), torch.ones(8, 4096)))
    (again,) = [kernels.values(o) for o in worker.work(params, task, kernels.jobs(1))]
    assert (weight == 1).all()
    assert all(again[name].tobytes() == value.tobytes() for name, value in first.items())
