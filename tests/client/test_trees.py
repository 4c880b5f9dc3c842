"""Federated XGBoost."""

import numpy as np
import pytest

from fedloom.client import Kind, Task, Weighting
from fedloom.client.trees import TREES, TreeClient, booster, empty
from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.strategies import Plain, RoundSettings

xgboost = pytest.importorskip("xgboost")

BINARY = {"objective": "binary:logistic", "max_depth": 3}
CLASSES = {"objective": "multi:softprob", "num_class": 3, "max_depth": 2}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int64)
THREE = np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [-0.5, 0.5])


def _task(round_=1, client="a", clients="a", steps=1, **settings):
    return Task(
        run="r",
        round=round_,
        kind=Kind.TRAIN,
        settings=RoundSettings(
            epochs=None, steps=steps, batch_size=0, learning_rate=0.3, **settings
        ),
        rule=Plain(),
        config={"clients": clients},
        seed=1,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        client=client,
    )


def _put(model, update):
    """The server's mean if one client covers each coordinate."""
    part = update.params[TREES]
    model[TREES][tuple(slice(a, b) for a, b in part.ranges)] = part.values


def _boosted(settings, y, rounds, steps):
    client = TreeClient(X, y, settings)
    model = empty(["a"], rounds)
    for number in range(1, rounds + 1):
        _put(model, client.train(model, _task(number, steps=steps)))
    return model


@pytest.mark.parametrize(("settings", "y"), [(BINARY, Y), (CLASSES, THREE)])
@pytest.mark.parametrize(("rounds", "steps"), [(5, 1), (2, 3)])
def test_one_client_equals_xgboost(settings, y, rounds, steps):
    """Trees and predictions have the bits of rounds times steps of boosting."""
    ours = booster(_boosted(settings, y, rounds, steps), settings)
    direct = xgboost.train(
        {**settings, "eta": 0.3, "base_score": 0.5, "nthread": 1},
        xgboost.DMatrix(X, label=y),
        rounds * steps,
    )
    assert ours.num_boosted_rounds() == rounds * steps
    data = xgboost.DMatrix(X)
    assert ours.predict(data).tobytes() == direct.predict(data).tobytes()
    assert ours.get_dump() == direct.get_dump()


def test_a_round_adds_the_trees_of_all_clients():
    """By name, each with its share of the learning rate; absent clients leave empty places."""
    half = {"b": slice(0, 60), "a": slice(60, 120)}
    clients = {name: TreeClient(X[part], Y[part], BINARY) for name, part in half.items()}
    model = empty(["a", "b", "c"], 2)
    updates = {
        name: client.train(model, _task(client=name, clients="c, b, a"))
        for name, client in clients.items()
    }
    for update in updates.values():
        _put(model, update)
    dump = booster(model, BINARY).get_dump()
    alone = [
        xgboost.train(
            {**BINARY, "eta": 0.1, "base_score": 0.5},
            xgboost.DMatrix(X[half[name]], label=Y[half[name]]),
            1,
        ).get_dump()[0]
        for name in ("a", "b")
    ]
    assert dump == alone
    again = clients["a"].train(model, _task(round_=2, client="a", clients="a,b,c"))
    assert again.params[TREES].ranges[:2] == ((1, 2), (0, 1))


def test_a_repeated_task_gives_the_same_bytes():
    """The client keeps no state."""
    client, model = TreeClient(X, Y, BINARY), empty(["a"], 3)
    once = client.train(model, _task())
    grown = {TREES: model[TREES].copy()}
    _put(grown, once)
    client.train(grown, _task(2))
    part, other = once.params[TREES], client.train(model, _task()).params[TREES]
    assert (part.values.tobytes(), part.ranges) == (other.values.tobytes(), other.ranges)


def test_metrics_are_those_of_the_trees_so_far():
    """XGBoost's log loss, and the accuracy."""
    model = _boosted(BINARY, Y, 3, 1)
    client = TreeClient(X[:60], Y[:60], BINARY, evaluate=(X[60:], Y[60:]))
    count, metrics = client.evaluate(model, _task())
    chance = booster(model, BINARY).predict(xgboost.DMatrix(X[60:]))
    expected = -np.mean(np.where(Y[60:] == 1, np.log(chance), np.log1p(-chance)))
    assert count == 60
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["accuracy"] == np.mean((chance > 0.5) == Y[60:])
    assert client.evaluate(empty(["a"], 1), _task()) == (0, {})
    assert not TreeClient(X, Y, BINARY).can_evaluate()


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        (empty(["a"], 1, 64), _task(), "at most 64 bytes, got .* more capacity_bytes"),
        (empty(["a", "b"], 1), _task(), r"Expected 2 names in config\.clients, 'a' among them"),
        (empty(["a"], 1), _task(client="z"), "'z' among them, got a"),
        ({"weight": np.zeros((2, 2), np.float32)}, _task(), "trees.empty, got .* weight"),
    ],
)
def test_other_runs_are_refused(model, task, message):
    """The error names the problem."""
    with pytest.raises(UsageError, match=message):
        TreeClient(X, Y, BINARY).train(model, task)


def test_a_full_model_is_refused():
    """Before the boosting."""
    with pytest.raises(UsageError, match="at most 1 rounds of trees"):
        TreeClient(X, Y, BINARY).train(_boosted(BINARY, Y, 1, 1), _task(2))


def test_changed_bytes_are_detected():
    """Such as by a mean of two clients in one place."""
    model = _boosted(BINARY, Y, 1, 1)
    model[TREES][0, 0, 40] ^= 1
    with pytest.raises(IntegrityError, match="place 0 of round 0, got bytes of another checksum"):
        booster(model, BINARY)
