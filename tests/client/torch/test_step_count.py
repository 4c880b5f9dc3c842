"""Local optimizers of a torch client: how gradients count in an update, and which are refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.strategies import client_rule
from support.tasks import task

X, Y = torch.ones(12, 2), torch.zeros(12, dtype=torch.int64)


class Own(torch.optim.SGD):
    """The author's optimizer, which may do anything."""


def client(**settings):
    return TorchClient(nn.Linear(2, 2), (X, Y), cross_entropy, **settings)


def count(rule="fednova", **settings):
    """The counted steps of three: 12 examples in batches of 4."""
    asked = task(rule=client_rule(rule), batch_size=4)
    made = client(**settings)
    made.train(made.initial(), asked)
    return asked.local.steps


def by_gradients_of_one(optimizer, schedule=lambda done: 1.0):
    """How far an optimizer goes with gradients of 1, divided by the learning rate."""
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    made = optimizer([param], lr=0.1)
    for done in range(3):
        made.param_groups[0]["lr"] = 0.1 * schedule(done / 3)
        param.grad = torch.ones(1, dtype=torch.float64)
        made.step()
    return -param.item() / 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("schedule", [None, "linear"])
def test_steps_are_the_weights_of_gradients(settings, schedule):
    """Of torch's optimizer itself: the sum of the weights is how far gradients of 1 go."""

    def optimizer(params, *, lr):
        return torch.optim.SGD(params, lr=lr, **settings)

    shape = (lambda done: 1 - done) if schedule else (lambda done: 1.0)
    expected = by_gradients_of_one(optimizer, shape)
    assert count(optimizer=optimizer, schedule=schedule) == pytest.approx(expected, rel=1e-12)


def test_default_steps_are_a_whole_number():
    """Exactly, so that updates keep their bits."""
    assert count() == 3.0
    assert count(optimizer=torch.optim.SGD) == 3.0


def test_another_learning_rate_than_the_tasks_counts_as_it_is():
    """Of an optimizer that ignores the rate that it is given."""
    assert count(optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr / 4)) == 0.75
    with pytest.raises(UsageError, match=r"rule qfedavg.*got SGD at another learning rate"):
        client(optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr / 4)).train(
            client().initial(), task(rule=client_rule("qfedavg", {"q": 1.0}))
        )


def kept():
    """A maker that returns the same optimizer for every task, with its momentum."""
    found = {}

    def optimizer(params, *, lr):
        if not found:
            found["it"] = torch.optim.SGD(params, lr=lr, momentum=0.9)
        return found["it"]

    return optimizer


def in_two_groups(params, *, lr):
    first, *rest = params
    return torch.optim.SGD([{"params": [first], "lr": lr / 2}, {"params": rest}], lr=lr)


@pytest.mark.parametrize(
    ("optimizer", "got"),
    [
        (torch.optim.Adam, "got Adam"),
        (Own, "got Own"),
        (in_two_groups, "got SGD, with other settings for some tensors"),
        (lambda p, lr: torch.optim.SGD(p, lr=lr, maximize=True), "maximize = True, with steps up"),
        (
            lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, dampening=-1.0),
            "with dampening outside 0 to 1",
        ),
    ],
    ids=["adam", "subclass", "groups", "maximize", "dampening"],
)
@pytest.mark.parametrize("rule", ["scaffold", "fednova"])
def test_steps_without_known_weights_are_refused(optimizer, got, rule):
    """Rather than used with weights that they do not have."""
    made = client(optimizer=optimizer)
    with pytest.raises(UsageError, match=f"rule {rule}, which .*{got}"):
        made.train(made.initial(), task(rule=client_rule(rule)))
    made.train(made.initial(), task(rule=client_rule("feddyn", {"alpha": 0.1})))


def test_momentum_from_an_earlier_task_is_refused():
    """Its weights count gradients of another round."""
    made = client(optimizer=kept())
    made.train(made.initial(), task(rule=client_rule("scaffold")))
    with pytest.raises(UsageError, match="values from an earlier task"):
        made.train(made.initial(), task(rule=client_rule("scaffold")))
