"""Client rules over rows of tensors give the gradients of whole tensors."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from fedloom.client.torch import TorchClient, parameters
from fedloom.client.torch.rules.corrections import corrections
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.tensors.file_arrays import Scratch
from fedloom.strategies import ClientRule, FedProx, TensorAtStep, client_rule
from fedloom.strategies.exact.lazy_arrays import BLOCK
from support.tasks import task

RULES = {
    "fedprox": {"mu": 0.3},
    "scaffold": {},
    "feddyn": {"alpha": 0.1},
    "mimelite": {"momentum": 0.9},
}
SHAPES = {
    "pieces, and a part of one": (37, BLOCK // 7),
    "rows larger than a piece": (3, BLOCK + 1),
    "one dimension": (2 * BLOCK + 5,),
    "small": (5, 7),
    "no dimensions": (),
}


def drawn(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def beside(rule, names, shape):
    """A rule's values for tensors of a shape."""

    def slots(wanted, seed):
        return {s: {n: drawn(shape, seed + at) for at, n in enumerate(names)} for s in wanted}

    return RuleContext(
        received=slots(rule.receives, 10),
        memory=slots(rule.remembers, 20),
        full_gradient={n: drawn(shape, 30) for n in names if rule.needs_gradient},
    )


def stored(local, scratch):
    """The same values in a file."""

    def keep(slots):
        return {s: {n: scratch.keep(a) for n, a in found.items()} for s, found in slots.items()}

    return RuleContext(
        received=keep(local.received), memory=keep(local.memory), full_gradient=local.full_gradient
    )


def expected(rule, param, local, name="w", anchor=None):
    """The rule's result for the whole gradient."""
    received, memory = local.slots_of(rule, name, tuple(param.shape))
    tensors = [
        {s: torch.from_numpy(a).to(param) for s, a in of.items()} for of in (received, memory)
    ]
    at = TensorAtStep(param=param.detach(), anchor=anchor, received=tensors[0], memory=tensors[1])
    return rule.gradient(param.grad.clone(), at)


@pytest.mark.parametrize("resting", [True, False], ids=["in files", "in memory"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", RULES)
def test_gradients_have_the_bits_of_whole_tensors(name, shape, resting, tmp_path):
    """At every step, also after the parameters changed."""
    rule = client_rule(name, RULES[name])
    module = nn.Module()
    module.w = nn.Parameter(torch.from_numpy(np.array(drawn(shape, 1))))
    local, anchor = beside(rule, ["w"], shape), module.w.detach().clone()
    here = stored(local, Scratch(tmp_path)) if resting else local
    correct = corrections(rule, here, {"w": module.w}, module)
    for seed in (2, 3):
        module.w.grad = torch.from_numpy(np.array(drawn(shape, seed)))
        wanted = expected(rule, module.w, local, anchor=anchor)
        correct()
        assert torch.equal(module.w.grad, wanted)
        with torch.no_grad():
            module.w -= 0.1 * module.w.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_and_dtypes_are_those_of_the_gradient(dtype, tmp_path):
    """Also for the channels-last layout."""
    rule, shape = client_rule("scaffold", {}), (64, 33, 7, 7)
    module = nn.Module()
    start = torch.from_numpy(drawn(shape, 1)).to(dtype, memory_format=torch.channels_last)
    module.w = nn.Parameter(start)
    local = beside(rule, ["w"], shape)
    grad = torch.from_numpy(drawn(shape, 2))
    module.w.grad = grad.to(dtype, memory_format=torch.channels_last)
    wanted = expected(rule, module.w, local)
    corrections(rule, stored(local, Scratch(tmp_path)), {"w": module.w}, module)()
    assert torch.equal(module.w.grad, wanted)
    assert module.w.grad.is_contiguous(memory_format=torch.channels_last)
    assert module.w.grad.dtype == dtype


def test_gradients_that_share_storage_are_changed_once_each():
    """Autograd gives a tensor and a transposed one that are added the same storage."""
    rule, shape = client_rule("scaffold", {}), (300, 300)
    module = nn.Module()
    module.a, module.b = (nn.Parameter(torch.from_numpy(drawn(shape, seed))) for seed in (1, 2))
    local = beside(rule, ["a", "b"], shape)
    params = dict(module.named_parameters())
    correct = corrections(rule, local, params, module)
    (module.a.T + module.b.T).pow(2).sum().backward()
    assert module.a.grad.data_ptr() == module.b.grad.data_ptr()
    wanted = {name: expected(rule, param, local, name) for name, param in params.items()}
    correct()
    for name, param in params.items():
        assert torch.equal(param.grad, wanted[name])


def test_a_sparse_gradient_is_changed_as_a_whole():
    """Its rows cannot be replaced in place."""

    class Half(ClientRule):
        name = "half"
        elementwise = True

        def gradient(self, grad, at):
            return 0.5 * grad

    module = nn.Embedding(1000, 100, sparse=True)
    correct = corrections(Half(), RuleContext(), {"weight": module.weight}, module)
    module(torch.tensor([1, 999])).sum().backward()
    correct()
    assert module.weight.grad.is_sparse
    assert float(module.weight.grad.to_dense().sum()) == 100.0


def held_bytes():
    """Bytes of all tensors in the process, each storage once."""
    gc.collect()
    found = [o for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter)]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values()
    )


@pytest.mark.long
@pytest.mark.parametrize(("name", "models"), [("scaffold", 0), ("fedprox", 1), ("feddyn", 1)])
def test_only_the_anchor_is_held_in_memory(name, models, tmp_path):
    """And only for a rule that needs it."""
    rule = client_rule(name, RULES[name])
    module = nn.Linear(600, 500, bias=False)
    here = stored(beside(rule, ["weight"], (500, 600)), Scratch(tmp_path))
    before = held_bytes()
    correct = corrections(rule, here, dict(module.named_parameters()), module)
    assert held_bytes() - before == models * module.weight.nbytes
    del correct


@pytest.mark.parametrize("name", RULES)
def test_needs_anchor_is_correct(name):
    """Rules that do not declare it work without an anchor."""
    rule = client_rule(name, RULES[name])
    module = nn.Linear(2, 2, bias=False)
    seen = []

    def gradient(grad, at):
        seen.append(at.anchor is not None)
        return type(rule).gradient(rule, grad, at)

    spied = type("Spied", (type(rule),), {"gradient": lambda _, grad, at: gradient(grad, at)})
    correct = corrections(
        spied(**RULES[name]), beside(rule, ["weight"], (2, 2)), {"weight": module.weight}, module
    )
    module.weight.grad = torch.ones(2, 2)
    correct()
    assert seen == [rule.needs_anchor]
    assert rule.needs_anchor == (name in {"fedprox", "feddyn"})


def test_received_parameters_are_released_during_training():
    """The module has a copy."""
    module = nn.Linear(3, 2)
    handed, alive = [], []

    def loss(output, target):
        alive.append(any(ref() is not None for ref in handed))
        return mse_loss(output, target)

    def arrays():
        made = {name: np.array(array) for name, array in parameters(module).items()}
        handed.extend(weakref.ref(array) for array in made.values())
        return made

    data = torch.ones(4, 3), torch.ones(4, 2)
    client = TorchClient(module, data, loss, evaluate=data)
    client.train(arrays(), task(rule=FedProx(mu=0.1)))
    client.evaluate(arrays(), task())
    assert alive
    assert not any(alive)


def test_mimelite_trains_a_module_of_bfloat16():
    """Its gradient over all examples is sent as float32."""
    module = nn.Linear(3, 2).bfloat16()
    data = torch.ones(4, 3, dtype=torch.bfloat16), torch.ones(4, 2, dtype=torch.bfloat16)
    asked = task(rule=client_rule("mimelite", RULES["mimelite"]))
    start = {name: np.array(array) for name, array in parameters(module).items()}
    TorchClient(module, data, mse_loss).train(start, asked)
    assert {a.dtype for a in asked.local.full_gradient.values()} == {np.dtype(np.float32)}
