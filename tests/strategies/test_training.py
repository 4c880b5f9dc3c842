"""Clients and server together: FedSGD is gradient descent, FedProx finds its optimum."""

import numpy as np
import pytest

from fedloom.strategies import (
    DELTA,
    FedProx,
    Full,
    LocalTraining,
    Partial,
    Plain,
    RoundSettings,
    TensorAtStep,
    TensorSpec,
    client_rule,
    exponent,
    strategy,
    weight_units,
)


def local(params, shard, settings, rule):
    """Plain full-batch local training of a linear regression."""
    assert settings.batch_size == 0
    inputs, targets = shard
    trained = dict(params)
    for _ in range(settings.steps):
        errors = inputs @ trained["w"] + trained["b"] - targets
        gradients = {"w": inputs.T @ errors / len(targets), "b": errors.mean()}
        for name, gradient in gradients.items():
            stepped = rule.gradient(
                gradient, TensorAtStep(param=trained[name], anchor=params[name])
            )
            trained[name] = trained[name] - settings.learning_rate * stepped
    return trained


def federated(algorithm, settings, shards, params, rounds):
    """Run rounds over all shards, weighted by examples."""
    specs = {
        (DELTA, name): TensorSpec(shape=np.shape(value), dtype=np.asarray(value).dtype)
        for name, value in params.items()
    }
    s = exponent(1e3, float(sum(len(targets) for _, targets in shards)))
    state = algorithm.init(params)
    for number in range(1, rounds + 1):
        partial = Partial(specs, s)
        for shard in shards:
            trained = local(params, shard, settings.at(number, len(shards)), algorithm.rule)
            for name, value in params.items():
                units = weight_units(float(len(shard[1])))
                partial.add_array((DELTA, name), Full(), units, np.asarray(trained[name] - value))
        params, state = algorithm.finish(state, params, partial)
    return params


def regression(sizes):
    """Shards of a noisy linear regression in five dimensions, each with its own inputs."""
    rng = np.random.default_rng(5)
    shards, truth = [], rng.standard_normal(5)
    for number, size in enumerate(sizes):
        inputs = rng.standard_normal((size, 5)) + number
        shards.append((inputs, inputs @ truth + 0.1 * rng.standard_normal(size)))
    return shards


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fedsgd_is_centralised_gradient_descent(dtype):
    """One full-batch step per round and client, five clients of different sizes."""
    shards = [
        (inputs.astype(dtype), targets.astype(dtype))
        for inputs, targets in regression([3, 50, 17, 200, 1])
    ]
    start = {"w": np.zeros(5, dtype), "b": np.zeros((), dtype)}
    settings = LocalTraining(steps=1, batch_size=None, learning_rate=0.02)
    pooled = tuple(np.concatenate(arrays) for arrays in zip(*shards, strict=True))
    ours, theirs = start, start
    for _ in range(60):
        ours = federated(strategy("fedavg"), settings, shards, ours, 1)
        theirs = local(theirs, pooled, settings.at(1, 1), Plain())
        for name in start:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6)
    assert np.abs(ours["w"]).max() > 0.1


def test_fedprox_reaches_the_proximal_optimum():
    """On a/2 (x - c)², with anchor x0, descent ends at (a·c + mu·x0) / (a + mu)."""
    rule, a, c = FedProx(mu=0.5), np.array([1.0, 2.0, 4.0]), np.array([3.0, -1.0, 0.5])
    anchor = np.array([0.0, 1.0, -2.0])
    x = anchor
    for _ in range(400):
        x = x - 0.1 * rule.gradient(a * (x - c), TensorAtStep(param=x, anchor=anchor))
    np.testing.assert_allclose(x, (a * c + 0.5 * anchor) / (a + 0.5), rtol=1e-12)


def test_fedprox_with_mu_0_is_plain_training():
    grad, param = np.array([1.0, -2.0]), np.array([3.0, 4.0])
    np.testing.assert_array_equal(
        FedProx(mu=0).gradient(grad, TensorAtStep(param=param, anchor=0 * param)), grad
    )
    assert Plain().gradient(grad, TensorAtStep(param=param, anchor=param)) is grad


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_fedprox_composes_with_every_server_optimizer(name):
    """Any optimizer passes the proximal rule on, and the model gets closer to the data."""
    shards = regression([40, 60, 20])
    rates = {"server_learning_rate": 0.1} if name not in {"fedavg", "fedavgm"} else {}
    algorithm = strategy(name, rates, rule=client_rule("fedprox", {"mu": 0.1}))
    assert algorithm.rule == FedProx(mu=0.1)
    settings = LocalTraining(steps=5, batch_size=None, learning_rate=0.02)
    start = {"w": np.zeros(5), "b": np.zeros(())}

    def loss(params):
        return np.mean([np.mean((x @ params["w"] + params["b"] - y) ** 2) for x, y in shards])

    assert loss(federated(algorithm, settings, shards, start, 30)) < 0.2 * loss(start)


def test_a_rule_is_rebuilt_from_its_name_and_settings():
    """As sent on the wire."""
    for rule in (Plain(), FedProx(mu=0.25)):
        assert client_rule(rule.name, rule.settings()) == rule


def test_settings_without_warm_up_or_scaling_are_passed_unchanged():
    """In every round and for every cohort."""
    settings = LocalTraining(epochs=2, batch_size=32, learning_rate=0.1)
    expected = RoundSettings(epochs=2, steps=None, batch_size=32, learning_rate=0.1)
    assert settings.at(1, 1) == settings.at(9, 100) == expected
    assert LocalTraining(steps=1, learning_rate=1).at(1, 1).batch_size == 0


def test_linear_scaling_follows_the_minibatch_of_the_round():
    """0.1 tuned for batches of 256: eight clients of 64 have 512 per step, so 0.2."""
    settings = LocalTraining(
        epochs=1, batch_size=64, learning_rate=0.1, scaling="linear", base_batch_size=256
    )
    assert settings.at(1, 8).learning_rate == pytest.approx(0.2)
    assert settings.at(7, 2).learning_rate == pytest.approx(0.05)


def test_warm_up_with_linear_scaling_rises_from_the_base_rate():
    """0.1 to 0.8 in seven steps of 0.1, then constant."""
    settings = LocalTraining(
        epochs=1,
        batch_size=256,
        learning_rate=0.1,
        warmup_rounds=7,
        scaling="linear",
        base_batch_size=256,
    )
    rates = [settings.at(number, 8).learning_rate for number in range(1, 11)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8])
    assert settings.at(1, 8).learning_rate == 0.1
    assert settings.at(8, 8).learning_rate == 0.8


def test_warm_up_never_starts_above_the_scaled_rate():
    """If scaled down, the rate is constant."""
    settings = LocalTraining(
        epochs=1,
        batch_size=1,
        learning_rate=0.1,
        warmup_rounds=3,
        scaling="linear",
        base_batch_size=100,
    )
    assert [settings.at(n, 1).learning_rate for n in (1, 2, 5)] == pytest.approx([0.001] * 3)


def test_warm_up_without_scaling_rises_in_equal_steps():
    """Four rounds of warm-up to 0.5, in steps of 0.1."""
    settings = LocalTraining(steps=3, learning_rate=0.5, warmup_rounds=4)
    rates = [settings.at(number, 3).learning_rate for number in range(1, 7)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


def test_a_global_batch_is_split_over_the_cohort():
    """256 examples per step over eight clients are 32 each, and scale the rate like 8 × 32."""
    settings = LocalTraining(
        steps=1, global_batch_size=256, learning_rate=0.1, scaling="linear", base_batch_size=64
    )
    split = LocalTraining(
        steps=1, batch_size=32, learning_rate=0.1, scaling="linear", base_batch_size=64
    )
    assert settings.at(1, 8) == split.at(1, 8)
    assert settings.at(1, 8).batch_size == 32


@pytest.mark.parametrize(("size", "cohort", "fitting"), [(250, 8, 248), (4, 8, 8)])
def test_a_global_batch_that_cannot_be_split_is_an_error_with_advice(size, cohort, fitting):
    """The message has the nearest size that fits."""
    settings = LocalTraining(steps=1, global_batch_size=size, learning_rate=0.1)
    with pytest.raises(ValueError, match=f"goal of {cohort}, got {size}. Set it to {fitting}"):
        settings.at(1, cohort)


BAD_SETTINGS = [
    ({"steps": 1, "batch_size": 8, "global_batch_size": 8}, ValueError, "either batch_size or"),
    ({"steps": 1, "clip_norm": 0}, ValueError, "clip_norm > 0"),
    ({}, ValueError, "either epochs or steps"),
    ({"epochs": 1, "steps": 1}, ValueError, "either epochs or steps"),
    ({"epochs": 0}, ValueError, "epochs >= 1"),
    ({"epochs": 1.5}, TypeError, "epochs to be a whole number"),
    ({"epochs": True}, TypeError, "epochs to be a whole number"),
    ({"steps": 1, "batch_size": 0}, ValueError, "batch_size >= 1"),
    ({"steps": 1, "learning_rate": 0}, ValueError, "learning_rate > 0"),
    ({"steps": 1, "learning_rate": float("nan")}, ValueError, "finite learning_rate"),
    ({"steps": 1, "learning_rate": "0.1"}, TypeError, "learning_rate to be a number"),
    ({"steps": 1, "warmup_rounds": -1}, ValueError, "warmup_rounds >= 0"),
    ({"steps": 1, "scaling": "sqrt"}, ValueError, "known: none, linear"),
    ({"steps": 1, "scaling": "linear", "batch_size": 8}, ValueError, "base_batch_size"),
    ({"steps": 1, "scaling": "linear", "base_batch_size": 8}, ValueError, "base_batch_size"),
    ({"steps": 1, "base_batch_size": 8}, ValueError, "base_batch_size"),
]


@pytest.mark.parametrize(("fields", "error", "message"), BAD_SETTINGS)
def test_invalid_settings_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        LocalTraining(**{"learning_rate": 0.1, **fields})


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0)])
def test_rounds_and_cohorts_start_at_one(arguments):
    with pytest.raises(ValueError, match=">= 1"):
        LocalTraining(steps=1, learning_rate=0.1).at(*arguments)
