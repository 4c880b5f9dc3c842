"""Client rules under transformers' Trainer: the same rounds as TorchClient has."""

import copy

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

import torch
from torch.utils.data import DataLoader

from fedloom.client.hf import HFClient
from fedloom.client.testing import rounds
from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.strategies import FedProx, strategy
from support import tasks
from support.tiny_gpt import adapted, arguments, examples, gpt

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft beside transformers 5

RATE = 0.2


def loss(output, labels):
    """Of the next words, as GPT2LMHeadModel has it."""
    scores, following = output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(scores, following)


def by_torch(model, data, optimizer):
    return TorchClient(
        model,
        DataLoader(data, shuffle=False),
        loss,
        split=lambda batch: (batch["input_ids"], batch["labels"]),
        optimizer=optimizer,
    )


PROX = {"rule": {"name": "fedprox", "mu": 0.7}}
SCAFFOLD = {"strategy": {"name": "scaffold", "clients": 2}}
FEDDYN = {"strategy": {"name": "feddyn", "alpha": 0.3, "clients": 2}}


@pytest.mark.parametrize(
    ("run", "optim", "optimizer", "accumulation"),
    [
        (PROX, "sgd", torch.optim.SGD, 1),
        (PROX, "sgd", torch.optim.SGD, 2),
        # Adam's steps do not bear the rounding of sums in parts where gradients are near zero.
        (PROX, "adamw_torch", torch.optim.Adam, 1),
        (SCAFFOLD, "sgd", torch.optim.SGD, 1),
        (SCAFFOLD, "sgd", torch.optim.SGD, 2),
        (FEDDYN, "sgd", torch.optim.SGD, 2),
    ],
    ids=["fedprox", "fedprox-2", "fedprox-adam", "scaffold", "scaffold-2", "feddyn-2"],
)
def test_rounds_with_a_rule_equal_those_of_torch_client(
    tmp_path, run, optim, optimizer, accumulation
):
    """Clipped, with steps of unequal size, and with gradient accumulation."""
    sets, start = [examples(6, 1), examples(10, 2)], gpt()
    rate = RATE if optim == "sgd" else RATE / 40
    settings = {**run, "train": {"epochs": 2, "batch_size": 4, "learning_rate": rate,
                                 "clip_norm": 0.3}}  # fmt: skip
    theirs = [
        HFClient(
            copy.deepcopy(start),
            arguments(tmp_path / str(i), optim=optim, gradient_accumulation_steps=accumulation),
            data,
        )
        for i, data in enumerate(sets)
    ]
    ours = [by_torch(copy.deepcopy(start), data, optimizer) for data in sets]
    plain = [by_torch(copy.deepcopy(start), data, optimizer) for data in sets]
    first = theirs[0].initial()
    found = rounds(theirs, first, num_rounds=3, run=settings).params
    expected = rounds(ours, first, num_rounds=3, run=settings).params
    without = rounds(plain, first, num_rounds=3, run={"train": settings["train"]}).params
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6, rtol=0)
    assert max(float(np.abs(without[n] - a).max()) for n, a in expected.items()) > 1e-4


def test_a_rule_changes_adapters_by_their_own_names(tmp_path):
    """One step of SCAFFOLD on adapters is a plain one, and -η·(c - c_i) of each tensor's own."""
    client = HFClient(adapted(), arguments(tmp_path, optim="sgd"), examples(8, 1))
    start = client.initial()
    length = {"steps": 1, "batch_size": 8, "learning_rate": RATE}
    plain, _, _ = client.train(start, tasks.task(**length))
    task = tasks.task(rule=strategy("scaffold", {"clients": 2}).rule, **length)
    numbered = list(enumerate(start.items()))
    control, mine = (
        {name: np.full_like(values, at * number) for number, (name, values) in numbered}
        for at in (0.03, 0.01)
    )
    task.local.received, task.local.memory = {"control": control}, {"control": mine}
    found, _, _ = client.train(start, task)
    assert task.local.trainable == set(start)
    for number, name in enumerate(start):
        np.testing.assert_allclose(
            found[name], plain[name] - RATE * 0.02 * number, atol=1e-6, rtol=0
        )


def test_the_real_steps_are_counted(tmp_path):
    """Those of a training that was stopped, too."""
    client = HFClient(adapted(), arguments(tmp_path, optim="sgd"), examples(8, 1))
    task = tasks.task(rule=strategy("scaffold", {"clients": 2}).rule, epochs=5, batch_size=4)
    with task.reporting(lambda _note: task.limit(0)):
        client.train(client.initial(), task)
    assert task.local.steps == client.trainer.state.global_step == 1


def test_steps_of_a_schedule_count_by_their_rates(tmp_path):
    """Wang et al. 2020, section 3.1: linear over two rounds of four steps."""
    client = HFClient(
        adapted(), arguments(tmp_path, optim="sgd", lr_scheduler_type="linear"), examples(4, 1),
        rounds=2,
    )  # fmt: skip
    rule, counted = strategy("scaffold", {"clients": 2}).rule, []
    for number in (1, 2):
        task = tasks.task(rule=rule, steps=4, batch_size=4, round_=number)
        client.train(client.initial(), task)
        counted.append(task.local.steps)
    assert counted == [pytest.approx((8 + 7 + 6 + 5) / 8), pytest.approx((4 + 3 + 2 + 1) / 8)]


@pytest.mark.parametrize(
    ("name", "settings", "args", "told"),
    [
        ("scaffold", {"clients": 2}, {}, "gradient descent.*scaffold.*AdamW"),
        ("scaffold", {"clients": 2}, {"optim": "sgd", "weight_decay": 0.1}, "other settings"),
        ("qfedavg", {"q": 1.0}, {}, "qfedavg.*pass over all examples"),
        ("mimelite", {}, {"optim": "sgd"}, "mimelite.*pass over all examples"),
    ],
)
def test_rules_that_would_be_wrong_are_refused(tmp_path, name, settings, args, told):
    model = gpt() if "weight_decay" in args else adapted()
    client = HFClient(model, arguments(tmp_path, **args), examples(4, 1))
    task = tasks.task(rule=strategy(name, settings).rule, batch_size=4)
    with pytest.raises(UsageError, match=f"(?s){told}"):
        client.train(client.initial(), task)


def test_an_optimizer_without_gradients_at_its_step_is_refused(tmp_path):
    client = HFClient(adapted(), arguments(tmp_path), examples(4, 1))
    client.trainer.args.optim = "lomo"
    with pytest.raises(UsageError, match="fedprox with optim = 'lomo'"):
        client.train(client.initial(), tasks.task(rule=FedProx(mu=0.1), batch_size=4))
