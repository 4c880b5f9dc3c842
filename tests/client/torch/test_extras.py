"""Mixed precision, schedules and adapters of the torch client."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.agent.task_run import differences
from fedloom.client.api import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, lora, merged, parameters
from fedloom.client.torch.precision import Precision
from fedloom.client.torch.schedules import NAMED, Scheduled
from fedloom.client.torch.steps import SGD
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Adapters, Personal, client_rule
from support import tasks
from support.site_cases import data, linear, settings


def task(rule=("plain", {}), personal=None, config=None, **changed):
    return Task(
        run="r",
        round=1,
        client="c",
        kind=Kind.TRAIN,
        settings=settings(**changed),
        rule=client_rule(*rule),
        config=config or {},
        seed=5,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        local=RuleContext(personal=Personal(**(personal or {}))),
    )


def made(module=None, **changed):
    module = linear() if module is None else module
    return TorchClient(module, data(103, 1), cross_entropy, evaluate=data(99, 2), **changed)


def start():
    return {n: np.array(a) for n, a in parameters(linear()).items()}


def trained(client, asked):
    new, _, metrics = client.train(start(), asked)
    return {n: np.array(a) for n, a in new.items()}, metrics


# ---- precision ----------------------------------------------------------------------------------


class Spy(nn.Module):
    """Records the dtype in which a layer computes."""

    def __init__(self):
        super().__init__()
        self.inner = linear()
        self.seen = set()

    def forward(self, x):
        y = self.inner(x)
        self.seen.add(y.dtype)
        return y


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_layers_compute_in_16_bits_and_parameters_stay_float32(name, dtype):
    """The update is float32, close to but not equal to the one of full precision."""
    spy = Spy()
    client = made(spy, precision=name)
    full = made(Spy())
    begin = {n: np.array(a) for n, a in parameters(full.model).items()}
    asked = task(epochs=4)
    got = {n: np.array(a) for n, a in client.train(begin, asked)[0].items()}
    want = {n: np.array(a) for n, a in full.train(begin, asked)[0].items()}
    assert spy.seen == {dtype}
    for tensor, array in got.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, want[tensor], atol=0.03)
    assert any((got[tensor] != want[tensor]).any() for tensor in got)
    spy.seen.clear()
    assert 0 < client.evaluate(got, asked)[1]["loss"] < 2
    assert spy.seen == {dtype}


def test_a_step_with_overflow_changes_nothing():
    """Neither the parameters nor the client rule's counter; the next step is taken."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], lr=0.1)
    precision, corrected = Precision("fp16"), []
    for factor, moved in ((float("inf"), False), (1.0, True)):
        before = weight.detach().clone()
        optimizer.zero_grad()
        precision.backward((weight * factor).sum())
        precision.step(optimizer, [weight], lambda: corrected.append(weight.grad.clone()))
        assert bool((weight != before).all()) is moved
    assert len(corrected) == 1
    assert corrected[0].tolist() == [1.0, 1.0]  # clipping gets unscaled gradients


def test_clipping_and_rules_get_unscaled_gradients():
    """With fp16's scaled loss a clipped step has the same length as without."""
    asked = task(epochs=None, steps=1, clip_norm=0.01, learning_rate=1.0, batch_size=0)
    new, _ = trained(made(precision="fp16"), asked)
    length = math.sqrt(sum(float(np.square(new[n] - a).sum()) for n, a in start().items()))
    assert length == pytest.approx(0.01, rel=1e-3)


def test_unsupported_precisions_are_refused():
    """An unknown one, a module in 16 bits, and a personal model."""
    with pytest.raises(UsageError, match="fp32, bf16, fp16"):
        made(precision="int8")
    with pytest.raises(UsageError, match="float32 parameters"):
        made(linear().bfloat16(), precision="bf16")
    with pytest.raises(UsageError, match="ditto"):
        made(precision="bf16").train(start(), task(personal={"name": "ditto"}))


# ---- schedules ----------------------------------------------------------------------------------


def test_a_schedule_decreases_from_the_rounds_rate_to_zero():
    """The first step has the full rate, the last one almost zero."""
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=2.0)
    scheduled = Scheduled(optimizer, NAMED["cosine"], 4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduled.step()
    wanted = [2.0 * 0.5 * (1 + math.cos(math.pi * n / 4)) for n in range(4)]
    assert rates == pytest.approx(wanted)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)


@pytest.mark.parametrize(
    "optimizer", [lambda: SGD, pytest.param(lambda: torch.optim.SGD, marks=pytest.mark.long)]
)
def test_linear_steps_by_hand(optimizer):
    """Two full-batch steps at rates lr and lr/2, by `SGD` and by torch's."""
    asked = task(epochs=None, steps=2, batch_size=0)
    module = linear()
    x, y = data(103, 1)
    for rate in (0.1, 0.05):
        module.zero_grad()
        cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for param in module.parameters():
                param.sub_(rate * param.grad)
    new, _ = trained(made(schedule="linear", optimizer=optimizer()), asked)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(new[name], value.numpy(), rtol=1e-6, atol=1e-7)


def test_the_run_may_choose_the_schedule():
    """`task` reads the run's config; without an entry the rate is constant."""
    by_run, _ = trained(made(schedule="task"), task(config={"schedule": "linear"}))
    by_hand, _ = trained(made(schedule="linear"), task())
    constant, _ = trained(made(), task())
    unset, _ = trained(made(schedule="task"), task())
    for name in constant:
        np.testing.assert_array_equal(by_run[name], by_hand[name])
        np.testing.assert_array_equal(unset[name], constant[name])
        assert (by_run[name] != constant[name]).any()


def test_unsupported_schedules_are_refused():
    """An unknown name, and a rule that uses the rate."""
    with pytest.raises(UsageError, match="linear, cosine"):
        made(schedule="task").train(start(), task(config={"schedule": "wild"}))
    with pytest.raises(UsageError, match=r"rule qfedavg, .*got SGD with a schedule"):
        made(schedule="cosine").train(start(), task(("qfedavg", {"q": 0.5})))


# ---- adapters -----------------------------------------------------------------------------------


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)),
        nn.Conv2d(3, 6, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, 4),
    )


@pytest.mark.long
@pytest.mark.parametrize("build", [linear, convolutional])
def test_new_and_merged_adapters_keep_the_outputs(build):
    """B is zero at first; after training the merged module has plain layers and equal outputs."""
    x, y = data(30, 3)
    module = build()
    with torch.no_grad():
        before = module(x)
        torch.testing.assert_close(lora(module, rank=2)(x), before)
    client = TorchClient(module, (x, y), cross_entropy)
    client.train({n: np.array(a) for n, a in parameters(module).items()}, task(epochs=5))
    plain = merged(module).eval()
    with torch.no_grad():
        after = module.eval()(x)
        torch.testing.assert_close(plain(x), after, rtol=1e-5, atol=1e-5)
    assert float((after - before).abs().max()) > 1e-2
    assert plain.state_dict().keys() == build().state_dict().keys()
    assert [type(m) for m in plain.modules()] == [type(m) for m in build().modules()]
    assert any("lora_a" in name for name in module.state_dict())  # a copy was merged


@pytest.mark.parametrize("only", [(), ("*lora_*",)])
def test_only_adapters_are_trained_and_sent(only):
    """The other tensors keep the server's values and are not sent, whatever `train.only` is."""
    torch.manual_seed(0)
    module = lora(nn.Sequential(nn.Linear(12, 256), nn.Tanh(), nn.Linear(256, 4)), rank=2)
    client = made(module)
    begin = {n: np.array(a) for n, a in parameters(module).items()}
    asked = task(only=only)
    new, num_examples, _ = client.train(begin, asked)
    assert num_examples == 103
    sent = list(differences(new, begin, asked))
    assert {part.tensor for part in sent} == {n for n in begin if "lora_" in n}
    whole = sum(array.nbytes for array in begin.values())
    assert sum(part.values.nbytes for part in sent) < 0.25 * whole
    for name, value in parameters(module).items():
        moved = bool((value != begin[name]).any())
        assert moved == ("lora_" in name), name


@pytest.mark.parametrize(
    "rule", [("fedprox", {"mu": 0.1}), ("scaffold", {}), ("mimelite", {"momentum": 0.5})]
)
def test_client_rules_apply_only_to_adapters(rule):
    """Memory and received slots are read only for trained tensors."""
    torch.manual_seed(0)
    module = lora(linear(), rank=2)
    begin = {n: np.array(a) for n, a in parameters(module).items()}
    asked = task(rule)
    made(module).train(begin, asked)
    assert asked.local.trainable == {n for n in begin if "lora_" in n}


def test_a_head_may_be_trained_beside_adapters():
    """`train` names other parameters to train and send."""
    module = lora(linear(), rank=2, targets=["0"], train=["2.*"])
    begin = {n: np.array(a) for n, a in parameters(module).items()}
    new, _, _ = made(module).train(begin, task())
    assert set(new) == {"0.lora_a", "0.lora_b", "2.weight", "2.bias"}


def test_unsupported_adapters_are_refused():
    """Each with its own error."""
    with pytest.raises(UsageError, match="rank of 1"):
        lora(linear(), rank=0)
    with pytest.raises(UsageError, match="at most 4"):
        lora(linear(), rank=5)
    with pytest.raises(UsageError, match="matches no linear"):
        lora(linear(), rank=2, targets=["*.query"])
    with pytest.raises(UsageError, match="got one with adapters"):
        lora(lora(linear(), rank=2), rank=2)
    with pytest.raises(UsageError, match="groups"):
        lora(nn.Sequential(nn.Conv2d(4, 4, 1, groups=2)), rank=1)
    module = lora(linear(), rank=2)
    begin = {n: np.array(a) for n, a in parameters(module).items()}
    with pytest.raises(UsageError, match=r"train\.widths"):
        made(module).train(begin, task(widths=(0.5,)))


class Handmade(nn.Module):
    """Has an adapter by our names, and tells no scale."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.layer.lora_a = nn.Parameter(torch.ones(2, 12))
        self.layer.lora_b = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: lora(linear(), rank=2, alpha=6.0), "scaled by 2, .*, got 3 in 0. Set alpha"),
        (linear, "scaled by 2, .*, got a client that cannot tell"),
        (Handmade, "scaled by 2, .*, got an unknown scale in layer"),
    ],
)
def test_a_device_with_another_scale_refuses_the_task(build, said):
    """Both to train and to evaluate; the run's scale is accepted, and so is a run without one."""
    asked = tasks.task(adapters=Adapters(scale=2.0))
    client = made(build())
    begin = {n: np.array(a) for n, a in parameters(client.model).items()}
    for do in (client.train, client.evaluate):
        with pytest.raises(UsageError, match=said):
            do(begin, asked)
        do(begin, tasks.task())
    same = made(lora(linear(), rank=2, alpha=4.0))
    begin = {n: np.array(a) for n, a in parameters(same.model).items()}
    assert same.train(begin, asked)[1] == 103
    assert same.evaluate(begin, asked)[0] == 99
