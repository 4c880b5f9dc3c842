"""What is refused before anybody trains: a batch of one example that the model does not take."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.crew import muster, plan
from fedloom.simulation.wire import over_the_wire
from support.experiments import CLASSES, FEATURES, Nudge, experiment, population


def normed(norm=nn.BatchNorm1d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), norm(8), nn.Linear(8, CLASSES))


def described(sizes, *, norm=nn.BatchNorm1d, client=None, **settings):
    train = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1, **settings.pop("train", {})}
    train = {name: value for name, value in train.items() if value is not None}
    cohort = {"goal": len(sizes)}
    made = experiment(
        data=population(sizes=sizes), cohort=cohort, train=train, client=client, **settings
    )
    return replace(made, model=partial(normed, norm))


def refusal(made):
    with pytest.raises(UsageError) as refused:
        plan(made)
    return str(refused.value)


@pytest.mark.parametrize(
    ("sizes", "train", "count", "holds", "set_"),
    [
        ((8, 9, 13), {}, 2, "client-001 with 9 examples in batches of 4", "train.batch_size = 5"),
        (
            (8, 9, 11, 10),
            {},
            1,
            "client-001 with 9 examples in batches of 4",
            "train.batch_size = 6",
        ),
        (
            (6, 4, 7),
            {"batch_size": None, "global_batch_size": 9},
            2,
            "client-001 with 4 examples in batches of 3",
            "train.global_batch_size = 12",
        ),
        (
            (8, 9),
            {"epochs": None, "steps": 3},
            1,
            "client-001 with 9 examples in batches of 4",
            "train.batch_size = 5",
        ),
        ((8, 1), {}, 1, "client-001 with 1 example", "Have every client hold two or more"),
        (
            (8, 1),
            {"batch_size": None},
            1,
            "client-001 with 1 example",
            "Have every client hold two or more",
        ),
        ((1, 1), {}, 2, "client-000 with 1 example", "Have every client hold two or more"),
        (
            (6, 8),
            {"batch_size": 1},
            2,
            "client-000 with 6 examples in batches of 1",
            "train.batch_size = 2",
        ),
    ],
    ids=["many", "one", "global", "steps", "of one", "whole of one", "all", "batches of one"],
)
def test_says_who_comes_to_a_batch_of_one(sizes, train, count, holds, set_):
    """And a setting by which nobody does, where there is one, which is then taken."""
    said = refusal(described(sizes, train=train))
    assert f"which {count} of {len(sizes)} clients come to, such as {holds}, got ValueError" in said
    assert f"{set_}, or" in said or f"{set_}: fewer" in said
    name, equals, value = set_.removeprefix("train.").partition(" = ")
    if equals:
        plan(described(sizes, train=train | {name: int(value)}))


def test_refuses_before_anybody_trains():
    """In a simulation as over the wire."""
    made = described((8, 9))
    for refuse in (muster, partial(simulate, show=False), partial(over_the_wire, show=False)):
        with pytest.raises(UsageError, match="on a batch of one example"):
            refuse(made)


def test_passes_over_the_head_alone_are_whole():
    """They end in the last batch, also where the steps after them do not come to it."""
    train = {"epochs": None, "steps": 1}
    plan(described((8, 9), train=train))
    personal = {"keep": ("2.*",), "head_epochs": 1}
    assert "such as client-001" in refusal(described((8, 9), train=train, personal=personal))


@pytest.mark.parametrize(
    ("sizes", "train", "norm"),
    [
        ((8, 10, 2), {}, nn.BatchNorm1d),
        ((8, 9), {"epochs": None, "steps": 2}, nn.BatchNorm1d),
        ((8, 9), {"batch_size": None}, nn.BatchNorm1d),
        ((8, 9, 1), {}, nn.LayerNorm),
        ((8, 9, 1), {"batch_size": 1}, partial(nn.GroupNorm, 2)),
    ],
    ids=["no such batch", "not come to", "all at once", "any layer", "any batch"],
)
def test_what_can_train_does(sizes, train, norm):
    """Neither the layer nor the sizes alone are a reason."""
    made = described(sizes, train=train, norm=norm, rounds=1)
    assert len(simulate(made, show=False).records) == 1


def test_normalisation_over_places_takes_one_example():
    """It is tried: an image gives BatchNorm more than one value of each channel."""

    def model():
        layers = (nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, CLASSES))

    made = replace(described((8, 9, 1), rounds=1), model=model)
    assert len(simulate(made, show=False).records) == 1


def test_a_target_that_is_broadcast_is_no_reason():
    """A model that drops the dimension of one example trains on it."""

    class Squeezed(nn.Linear):
        def forward(self, x):
            return super().forward(x).squeeze()

    data = population(sizes=(8, 9), test=0)
    values = replace(data.examples, y=data.examples.x[:, 0].copy())
    data = replace(data, examples=values, num_classes=None)
    made = experiment(data=data, goal=2, rounds=1, kernel="resident")
    made = replace(made, model=partial(Squeezed, FEATURES, 1), loss=nn.functional.mse_loss)
    plan(made)


def test_clients_with_code_of_their_own_are_not_asked():
    """Who knows which batches they make?"""
    plan(described((8, 9), client=Nudge))
