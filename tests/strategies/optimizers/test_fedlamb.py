"""LAMB on the server: every tensor changes in proportion to its norm."""

import numpy as np
import pytest

from fedloom.strategies import (
    DELTA,
    FedAdam,
    FedLamb,
    Full,
    Mask,
    Partial,
    Schedule,
    TensorSpec,
    exponent,
    weight_units,
)
from fedloom.strategies.optimizers.blockwise import BLOCK


def partial_of(model, deltas, coverage=None):
    specs = {
        (DELTA, name): TensorSpec(shape=value.shape, dtype=value.dtype)
        for name, value in model.items()
    }
    partial = Partial(specs, exponent(8.0, 16.0))
    for name, delta in deltas.items():
        partial.add_array(
            (DELTA, name), (coverage or {}).get(name, Full()), weight_units(1.0), np.asarray(delta)
        )
    return partial


def finish(optimizer, model, rounds):
    state = optimizer.init(model)
    for deltas in rounds:
        model, state = optimizer.finish(state, model, partial_of(model, deltas))
    return model


def lamb(x, deltas, *, rate, beta_1, beta_2, tau, decay, corrected):
    """Algorithm 2 of You et al., independent: v from 0 with bias correction, or like ours."""
    m, v = np.zeros_like(x), np.full_like(x, 0.0 if corrected else tau**2)
    for t, delta in enumerate(deltas, start=1):
        m = beta_1 * m + (1 - beta_1) * -delta
        v = beta_2 * v + (1 - beta_2) * delta**2
        top = m / (1 - beta_1**t) if corrected else m
        bottom = v / (1 - beta_2**t) if corrected else v
        r = top / (np.sqrt(bottom) + tau) + decay * x
        trust = np.linalg.norm(x) / np.linalg.norm(r)
        x = x - rate * trust * r
    return x


@pytest.fixture
def rounds():
    """A model of two tensors, one longer than a block, and five rounds' mean deltas."""
    generator = np.random.default_rng(7)
    model = {"w": generator.normal(size=BLOCK + 37) / 300, "b": generator.normal(size=3)}
    deltas = [
        {name: generator.normal(size=value.size) / 4 for name, value in model.items()}
        for _ in range(5)
    ]
    return model, deltas


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_trajectory_is_the_papers(rounds, decay):
    """Five rounds of two tensors, compared with an independent program."""
    model, deltas = rounds
    settings = {"beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}
    optimizer = FedLamb(server_learning_rate=0.02, weight_decay=decay, **settings)
    got = finish(optimizer, model, deltas)
    for name, start in model.items():
        wanted = lamb(
            start, [d[name] for d in deltas], rate=0.02, decay=decay, corrected=False, **settings
        )
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5)


def test_without_decay_bias_correction_would_change_nothing(rounds):
    """It scales the direction, whose norm cancels: equal to the paper's algorithm to 1e-4."""
    model, deltas = rounds
    settings = {"beta_1": 0.9, "beta_2": 0.99, "tau": 1e-9}
    got = finish(FedLamb(server_learning_rate=0.02, **settings), model, deltas)
    for name, start in model.items():
        wanted = lamb(
            start, [d[name] for d in deltas], rate=0.02, decay=0.0, corrected=True, **settings
        )
        np.testing.assert_allclose(got[name], wanted, rtol=1e-4, atol=1e-7)


def test_a_tensor_moves_by_its_own_norm(rounds):
    """The first step is η times the norm, up to the largest norm; scaled deltas change little."""
    model, deltas = rounds
    big = {name: 100 * value for name, value in model.items()}
    for start, norms in ((model, None), (big, 10.0)):
        got = finish(FedLamb(server_learning_rate=0.02), start, deltas[:1])
        for name, value in start.items():
            norm = min(np.linalg.norm(value), norms or np.inf)
            moved = np.linalg.norm(got[name] - value)
            assert moved == pytest.approx(0.02 * norm, rel=1e-5)


def test_a_tensor_of_zeros_steps_as_adam_does():
    """The ratio is 1 at norm 0."""
    model, deltas = {"b": np.zeros(4)}, [{"b": np.array([1.0, -2.0, 0.5, 0.0])}]
    got = finish(FedLamb(server_learning_rate=0.1), model, deltas)
    wanted = finish(FedAdam(server_learning_rate=0.1), model, deltas)
    np.testing.assert_array_equal(got["b"], wanted["b"])
    still = finish(FedLamb(), {"b": np.ones(2)}, [{"b": np.zeros(2)}])
    np.testing.assert_array_equal(still["b"], np.ones(2))


def test_norms_are_over_covered_coordinates():
    """Other coordinates neither change nor count."""
    model = {"w": np.array([3.0, 4.0, 1000.0])}
    mask = Mask(np.array([True, True, False]))
    partial = partial_of(model, {"w": np.array([0.5, 0.5])}, {"w": mask})
    new, _ = FedLamb(server_learning_rate=0.1).finish(FedLamb().init(model), model, partial)
    assert new["w"][2] == 1000.0
    assert np.linalg.norm(new["w"][:2] - [3.0, 4.0]) == pytest.approx(0.1 * 5.0)


def test_a_schedule_scales_the_trusted_step(rounds):
    """Half the rate is half the step."""
    model, deltas = rounds
    whole = finish(FedLamb(server_learning_rate=0.02), model, deltas[:1])
    half = finish(
        FedLamb(server_learning_rate=0.02, schedule=Schedule(warmup_rounds=1)), model, deltas[:1]
    )
    for name, value in model.items():
        np.testing.assert_allclose(half[name] - value, (whole[name] - value) / 2, rtol=1e-9)
