"""Checks before training: a batch of one example, or NaN, on which the model fails."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client.trees import TreeClient
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate
from fedloom.simulation.training.dry_run import check_fit
from fedloom.simulation.trees import TreeModel
from fedloom.simulation.wire.harness import over_the_wire
from fedloom.simulation.workers.setup import plan, set_up_workers
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
        ((8, 1), {}, 1, "client-001 with 1 example", "Give every client at least two"),
        (
            (8, 1),
            {"batch_size": None},
            1,
            "client-001 with 1 example",
            "Give every client at least two",
        ),
        ((1, 1), {}, 2, "client-000 with 1 example", "Give every client at least two"),
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
def test_names_the_clients_with_a_batch_of_one(sizes, train, count, holds, set_):
    said = refusal(described(sizes, train=train))
    assert f"which {count} of {len(sizes)} clients have, such as {holds}: ValueError" in said
    assert f"{set_}, or" in said or f"{set_}: fewer" in said
    name, equals, value = set_.removeprefix("train.").partition(" = ")
    if equals:
        plan(described(sizes, train=train | {name: int(value)}))


def test_a_batch_of_one_is_refused_before_training():
    made = described((8, 9))
    for refuse in (
        set_up_workers,
        partial(simulate, show=False),
        partial(over_the_wire, show=False),
    ):
        with pytest.raises(UsageError, match="on a batch of one example"):
            refuse(made)


def test_head_epochs_are_checked_too():
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
def test_trainable_experiments_are_accepted(sizes, train, norm):
    made = described(sizes, train=train, norm=norm, rounds=1)
    assert len(simulate(made, show=False).records) == 1


def test_batch_normalisation_over_positions_accepts_one_example():
    def model():
        layers = (nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, CLASSES))

    made = replace(described((8, 9, 1), rounds=1), model=model)
    assert len(simulate(made, show=False).records) == 1


def test_a_broadcast_target_is_accepted():
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


def test_clients_with_their_own_code_are_not_checked():
    plan(described((8, 9), client=Nudge))


# ---- NaN and infinity ----------------------------------------------------------------------------


class Fills(nn.Linear):
    """Replaces NaN by zero."""

    def forward(self, x):
        return super().forward(torch.nan_to_num(x))


def squared(output, target):
    return nn.functional.mse_loss(output.flatten(), target)


def masked(output, target):
    """The mean error over the targets that are not NaN."""
    there = ~torch.isnan(target)
    return (output.flatten()[there] - target[there]).square().mean()


def holding(*spoilt, classes=True):
    """40 examples of 4 features on four clients; `spoilt` has array, index and value."""
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 4)), np.arange(40) % 3 if classes else rng.random(40)
    arrays = {"x": x, "y": y, "x_test": x[:5].copy(), "y_test": y[:5].copy()}
    for name, place, value in spoilt:
        arrays[name][place] = value
    return sources.from_arrays(**arrays, clients=4)


def on(data, model=None, loss=nn.functional.cross_entropy, **settings):
    made = experiment(data=data, goal=4, rounds=1, **settings)
    width = 3 if data.num_classes else 1
    return replace(made, model=model or partial(nn.Linear, 4, width), loss=loss)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            holding(("x", (17, 2), np.nan), ("x", (20, 0), -np.inf)),
            "in 2 of 160 values of x, the first nan at [17, 2], which leads to a loss of nan",
        ),
        (
            holding(("x", (3, 1), 1e40)),
            "in 1 of 160 values of x, the first 1e+40 (infinite as float32) at [3, 1], which leads",
        ),
        (
            holding(("y", 5, np.inf), classes=False),
            "in 1 of 40 values of y, the first inf at [5], which leads to a loss of inf",
        ),
        (
            holding(("x", (1, 0), np.nan), ("y", 5, np.nan), classes=False),
            "in 1 of 160 values of x, the first nan at [1, 0], and in 1 of 40 values of y, the",
        ),
        (
            holding(("x_test", (4, 3), np.nan)),
            "in 1 of 20 values of x_test, the first nan at [4, 3], which leads to a loss of nan",
        ),
    ],
    ids=["inputs", "too large", "targets", "both", "test"],
)
def test_non_finite_data_are_located(data, said):
    """Array, count and index of the first value, as the caller numbers them."""
    loss = nn.functional.cross_entropy if data.num_classes else squared
    assert f"have NaN or infinity {said}" in refusal(on(data, loss=loss))


def test_the_file_of_non_finite_data_is_named_before_training(tmp_path):
    x, y = np.random.default_rng(0).random((40, 4)).astype(np.float32), np.arange(40) % 3
    x[31, 1] = np.nan
    path = tmp_path / "spoilt.npz"
    np.savez(path, x=x, y=y)
    for test in (0.0, 0.9):
        made = config.load(
            {
                "rounds": 1,
                "data": {"source": "arrays", "file": str(path), "clients": 2, "test": test},
                "model": {"name": "logistic"},
                "cohort": {"goal": 2},
                "train": {"epochs": 1, "learning_rate": 0.1},
            }
        )
        with pytest.raises(UsageError, match=r"1 of 160 values of x of .*spoilt\.npz.*\[31, 1\]"):
            simulate(made, show=False)


def test_infinity_is_detected_in_the_gradient():
    squashing = partial(nn.Sequential, nn.Linear(4, 3), nn.Tanh())
    data = holding(("x", (9, 0), np.inf))
    assert "[9, 0], which leads to gradients that are NaN" in refusal(on(data, squashing))
    unsaid = simulate(on(replace(data, flaws=()), squashing), show=False)
    assert unsaid.records[-1].accepted == 3


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (holding(("x", (7, 0), np.nan)), {"model": partial(Fills, 4, 3)}),
        (holding(("y", 7, np.nan), classes=False), {"loss": masked}),
        (holding(("x", (7, 0), np.nan)), {"client": Nudge}),
    ],
    ids=["filled", "masked", "own code"],
)
def test_nan_that_the_code_handles_is_accepted(data, settings):
    """By the model, the loss or the client's own code."""
    assert data.flaws
    made = replace(on(data, **settings), test_every=0)
    assert simulate(made, show=False).records[-1].accepted == 4


def test_non_finite_values_that_are_not_used_are_accepted():
    """In an example outside the split, in disabled tests, and in disabled evaluation."""
    data = holding(("x", (39, 0), np.nan))
    assert "[39, 0]" in refusal(on(data))
    left = replace(data, shards=[shard[shard != 39] for shard in data.shards])
    plan(on(left))
    held_out = replace(left, held_out_shards=[np.array([39])] * 4)
    assert "[39, 0]" in refusal(on(held_out))
    plan(on(held_out, evaluate=False))
    plan(replace(on(holding(("x_test", (4, 3), np.nan))), test_every=0))


def test_trees_train_with_missing_values():
    pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    x, y = rng.random((80, 3)), np.arange(80) % 2
    x += y[:, np.newaxis]
    x[rng.random(x.shape) < 0.2] = np.nan
    data = sources.from_arrays(x, y, clients=2, test=0.25)
    settings = {"objective": "binary:logistic", "max_depth": 2}
    shards = dict(zip(data.names, data.shards, strict=True))

    def client(name):
        return TreeClient(data.examples.x[shards[name]], data.examples.y[shards[name]], settings)

    made = experiment(
        data=data,
        goal=2,
        rounds=1,
        client=client,
        train={"steps": 4, "learning_rate": 0.5},
        config={"clients": ",".join(data.names)},
    )
    made = replace(made, model=lambda: TreeModel(data.names, 1, settings))
    assert simulate(made, show=False).records[-1].test["accuracy"] > 0.8


# ---- GPUs ----------------------------------------------------------------------------------------


def test_a_batch_of_one_is_refused_on_a_gpu_too():
    gpu = torch.device("cuda")
    with pytest.raises(UsageError, match="on a batch of one example"):
        check_fit(described((8, 9)), gpu)

    class Needy(nn.Linear):
        def forward(self, x):
            raise RuntimeError("Expected a tensor on a GPU")

    needy = on(holding(("x", (7, 0), np.nan)), partial(Needy, 4, 3))
    check_fit(needy, gpu)
    with pytest.raises(UsageError, match="Expected a tensor on a GPU"):
        check_fit(needy, torch.device("cpu"))
