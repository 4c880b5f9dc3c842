"""Clients in numpy: their steps follow the formula, and rules get every gradient."""

import numpy as np
import pytest

from fedloom.client import Update
from fedloom.client.numpy import fit_client, gradient_client
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Adapters, Personal, client_rule
from support.tasks import task

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 1


def _squares(params, x, y):
    error = x @ params["w"] + params["b"] - y
    return np.mean(error**2), {
        "w": 2 * x.T @ error / len(y),
        "b": 2 * np.mean(error, keepdims=True),
    }


def _start():
    return {"w": np.zeros(3), "b": np.zeros(1)}


def test_a_step_on_all_examples_is_gradient_descent():
    """W − η · gradient, in float64, for each step."""
    client = gradient_client(_squares, (X, Y))
    asked = task(steps=3, batch_size=0)
    got, num_examples, metrics = client.train(_start(), asked)
    assert asked.local.steps == 3
    expected, losses = _start(), []
    for _ in range(3):
        loss, gradients = _squares(expected, X, Y)
        losses.append(loss)
        expected = {n: expected[n] - 0.1 * gradients[n] for n in expected}
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
    assert num_examples == 20
    assert metrics == {"loss": pytest.approx(np.mean(losses))}


def test_batches_follow_from_the_seed_and_cover_every_example():
    """Each epoch has every example, in its own order; another seed gives another order."""
    seen = []

    def gradient(params, x, y):
        seen.append(x[:, 0].tolist())
        return 0.0, {"w": np.zeros(3)}

    client = gradient_client(gradient, (X, Y))
    client.train(_start(), task(epochs=2, batch_size=8))
    first = seen.copy()
    assert [len(batch) for batch in first] == [8, 8, 4, 8, 8, 4]
    for epoch in (first[:3], first[3:]):
        assert sorted(value for batch in epoch for value in batch) == sorted(X[:, 0])
    assert first[:3] != first[3:]
    seen.clear()
    client.train(_start(), task(epochs=2, batch_size=8))
    assert seen == first
    seen.clear()
    client.train(_start(), task(epochs=2, batch_size=8, seed=2))
    assert seen != first


def test_float32_models_stay_float32_and_integers_stay():
    """Even with a float64 gradient; a tensor without a gradient is not sent."""
    start = {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32), "n": np.ones(1, np.int64)}
    got, _, _ = gradient_client(_squares, (X, Y)).train(start, task())
    assert {name: array.dtype for name, array in got.items()} == {"w": np.float32, "b": np.float32}


def test_fedprox_reaches_its_fixed_point():
    """On squared errors it is the solution of regularised least squares."""
    rule = client_rule("fedprox", {"mu": 4.0})
    settings = {"steps": 400, "batch_size": 0}
    got, _, _ = gradient_client(_squares, (X, Y)).train(_start(), task(rule=rule, **settings))
    a = np.c_[X, np.ones(20)]
    expected = np.linalg.solve(2 * a.T @ a / 20 + 4 * np.eye(4), 2 * a.T @ Y / 20)
    np.testing.assert_allclose(np.r_[got["w"], got["b"]], expected, atol=1e-9)


def test_rules_get_control_variates_and_the_initial_loss():
    """SCAFFOLD steps along grad + c − c_k; q-FedAvg gets the loss over all examples."""
    rule = client_rule("scaffold", {})
    asked = task(rule=rule, steps=1, batch_size=0)
    asked.local.received = {slot: {"w": np.full(3, 0.5)} for slot in rule.receives}
    asked.local.memory = {slot: {"w": np.full(3, 0.2)} for slot in rule.remembers}
    got, _, _ = gradient_client(_squares, (X, Y)).train(_start(), asked)
    _, gradients = _squares(_start(), X, Y)
    np.testing.assert_allclose(got["w"], -0.1 * (gradients["w"] + 0.3), rtol=1e-12)
    surveyed = task(rule=client_rule("qfedavg", {"q": 1.0}))
    gradient_client(_squares, (X, Y)).train(_start(), surveyed)
    assert surveyed.local.initial_loss == pytest.approx(np.mean(Y**2))


def test_initial_loss_and_full_gradient_are_means_over_all_examples():
    """Also over several batches, the last of which is smaller."""
    x = RNG.normal(size=(5000, 3))
    y = x @ np.array([1.0, 0.0, 3.0]) + 2
    asked = task(rule=client_rule("mimelite", {"momentum": 0.9}), steps=1)
    gradient_client(_squares, (x, y)).train(_start(), asked)
    _, gradients = _squares(_start(), x, y)
    assert asked.local.initial_loss == pytest.approx(np.mean(y**2))
    assert asked.local.full_gradient.keys() == {"w", "b"}
    for name, gradient in gradients.items():
        np.testing.assert_allclose(asked.local.full_gradient[name], gradient, rtol=1e-9)


def test_a_rule_does_not_change_personal_tensors():
    """FedProx keeps only shared tensors near the server's."""
    rule, personal = client_rule("fedprox", {"mu": 4.0}), Personal(keep=("b",))
    own = {}
    for name, kept in (("shared", Personal()), ("kept", personal)):
        asked = task(rule=rule, steps=400, batch_size=0, personal=kept)
        own[name], _, _ = gradient_client(_squares, (X, Y)).train(_start(), asked)
        assert asked.local.trainable == ({"w"} if name == "kept" else {"w", "b"})
    assert abs(own["kept"]["b"]) > 2 * abs(own["shared"]["b"])


def test_gradients_are_clipped_together():
    """A step is at most the learning rate times the clip norm."""
    asked = task(steps=1, batch_size=0, clip_norm=0.01)
    got, _, _ = gradient_client(_squares, (X, Y)).train(_start(), asked)
    length = np.sqrt(sum(np.sum(array**2) for array in got.values()))
    assert length == pytest.approx(0.1 * 0.01)


def test_frozen_tensors_are_not_sent():
    """Only the tensors of `train.only` are."""
    got, _, _ = gradient_client(_squares, (X, Y)).train(_start(), task(only=("w",)))
    assert got.keys() == {"w"}


def test_training_stops_when_asked_or_without_improvement():
    client = gradient_client(_squares, (X, Y))
    stopped = task(epochs=3)
    stopped.stop()
    client.train(_start(), stopped)
    assert stopped.local.steps == 0
    patient = task(epochs=100, learning_rate=10.0, patience=2)
    client.train(_start(), patient)
    assert patient.local.steps < 30


def test_ifca_trains_the_model_of_least_loss():
    """And evaluates it."""
    rule = client_rule("ifca", {"clusters": 2})
    asked = task(rule=rule, steps=1, batch_size=0)
    best = {"w": np.array([1.0, -2.0, 0.5]), "b": np.array([1.0])}
    asked.local.received = dict.fromkeys(rule.receives, best)
    client = gradient_client(_squares, (X, Y), held_out=(X, Y))
    got, _, metrics = client.train(_start(), asked)
    assert asked.local.cluster == 1 == metrics["cluster"]
    np.testing.assert_allclose(got["w"], best["w"], atol=1e-12)
    assert client.evaluate(_start(), asked)[1]["loss"] == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"widths": (0.5,)}, "without train.widths"),
        ({"personal": Personal(keep=("b",), head_epochs=1)}, "without personal.head_epochs"),
        ({"personal": Personal(name="ditto")}, "without personal.name"),
    ],
)
def test_settings_that_need_a_module_are_refused(asked, sentence):
    with pytest.raises(UsageError, match=sentence):
        gradient_client(_squares, (X, Y)).train(_start(), task(**asked))


@pytest.mark.parametrize(
    ("gradients", "sentence"),
    [({"v": np.zeros(3)}, "one of 'v'"), ({"w": np.zeros(2)}, r"shape \(3,\) for 'w', got \(2,\)")],
)
def test_gradients_that_do_not_fit_are_named(gradients, sentence):
    client = gradient_client(lambda *_: (0.0, gradients), (X, Y))
    with pytest.raises(UsageError, match=sentence):
        client.train(_start(), task())


def test_a_function_may_do_the_whole_training():
    """It returns parameters, or any result of `Client.train`."""

    def fit(params, shard, asked):
        for x, y in shard.training(asked.seed, 5, epochs=1):
            params["w"] += x.sum(axis=0) * 0 + len(y)
        return params

    client = fit_client(fit, (X, Y), held_out=(X, Y), measure=lambda p, x, y: {"loss": y.mean()})
    params, num_examples, metrics = client.train(_start(), task())
    np.testing.assert_array_equal(params["w"], 20.0)
    assert (num_examples, metrics) == (20, {})
    assert client.evaluate(params, task()) == (20, {"loss": pytest.approx(Y.mean())})
    whole = fit_client(lambda p, s, t: Update(p, 7, weight=2.0), (X, Y))
    assert whole.train(_start(), task()).num_examples == 7


def test_fit_client_refuses_rules_that_need_gradients():
    client = fit_client(lambda p, s, t: p, (X, Y))
    with pytest.raises(UsageError, match="Use gradient_client"):
        client.train(_start(), task(rule=client_rule("fedprox", {"mu": 0.1})))
    with pytest.raises(UsageError, match="Expected measure in fit_client"):
        client.train(_start(), task(rule=client_rule("qfedavg", {"q": 1.0})))
    with pytest.raises(UsageError, match="Expected measure with held_out"):
        fit_client(lambda p, s, t: p, (X, Y), held_out=(X, Y))


@pytest.mark.parametrize("data", [(X[:0], Y[:0]), (X, Y[:3]), 7])
def test_invalid_data_are_refused(data):
    """No examples, unequal lengths, or not data."""
    with pytest.raises(UsageError):
        gradient_client(_squares, data)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "client",
    [
        gradient_client(_squares, (X, Y), held_out=(X, Y)),
        fit_client(lambda p, s, t: p, (X, Y), held_out=(X, Y), measure=lambda *_: {"loss": 1.0}),
    ],
)
def test_clients_without_a_scale_refuse_a_run_that_sets_it(client, kind):
    """Of adapters: with another one, another function would be averaged."""
    getattr(client, kind)(_start(), task())
    with pytest.raises(UsageError, match=r"scaled by 2, .*, got a client that cannot tell"):
        getattr(client, kind)(_start(), task(adapters=Adapters(scale=2.0)))
