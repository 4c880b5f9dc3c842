"""Client rules with memory, scalars and slots of the server: against closed forms on quadratics."""

import numpy as np
import pytest

from fedloom.client.training.client_rule import RuleContext, apply_rule
from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import (
    DELTA,
    FedAvg,
    Full,
    Partial,
    RoundSettings,
    Slice,
    State,
    TensorSpec,
    client_rule,
    exponent,
    strategy,
    weight_units,
)
from fedloom.strategies.algorithms.feddyn import FedDyn, FedDynRule
from fedloom.strategies.algorithms.fednova import FedNova
from fedloom.strategies.algorithms.mimelite import MimeLite
from fedloom.strategies.algorithms.qfedavg import QFedAvg
from fedloom.strategies.algorithms.scaffold import Scaffold, ScaffoldRule
from fedloom.strategies.client_rules import FedProx, Plain
from fedloom.strategies.exact.partial import SCALAR
from support.quadratics import Quadratics, heterogeneous


def fixed_point(world, weights=None):
    """FedAvg converges to x with y = c + (1 - ηa)^K (x - c) on each client, whose mean is x."""
    weights = np.ones(len(world.a)) if weights is None else np.asarray(weights)
    pull = 1 - (1 - world.learning_rate * world.a) ** np.array(world.steps)[:, None]
    shares = weights[:, None] * pull
    return (shares * world.c).sum(axis=0) / shares.sum(axis=0)


def test_fedavg_is_biased_with_different_clients():
    """It converges where its drifted steps cancel, which is not the optimum."""
    world = heterogeneous()
    x = world.run(FedAvg(), 400)
    np.testing.assert_allclose(x, fixed_point(world), atol=1e-9)
    assert np.abs(x - world.optimum).max() > 0.02


def test_scaffold_reaches_the_optimum_of_heterogeneous_quadratics():
    """To 1e-9, where FedAvg with the same steps stays 0.02 away."""
    world = heterogeneous()
    x = world.run(Scaffold(clients=4), 400)
    np.testing.assert_allclose(x, world.optimum, atol=1e-9)


@pytest.mark.long
def test_scaffold_reaches_it_with_two_of_four_clients_per_round():
    """Absent clients keep their control variates."""
    world = heterogeneous()
    cohorts = [(0, 1), (2, 3), (0, 2), (1, 3)]
    x = world.run(Scaffold(clients=4, server_learning_rate=0.5), 1500, cohorts)
    np.testing.assert_allclose(x, world.optimum, atol=1e-9)


def test_two_rounds_of_scaffold_worked_by_hand():
    """One client of two, a = 1, c = 2, K = 2, η = 1/2: x 0 → 1.5, c_i = -1.5, then x 1.3125."""
    world = Quadratics(
        a=np.array([[1.0], [1.0]]), c=np.array([[2.0], [-2.0]]), steps=[2, 2], learning_rate=0.5
    )
    algorithm = Scaffold(clients=2)
    x, state = world.round(algorithm, State(), np.zeros(1), [0])
    # y: 0 → 1 → 1.5, so c_i⁺ = -(1.5)/(2·½) = -1.5 and c = ½·(-1.5).
    assert x == pytest.approx([1.5])
    assert world.memory[0]["control"]["x"] == pytest.approx([-1.5])
    assert state.slots["control"]["x"] == pytest.approx([-0.75])
    # g = y - 2 + 1.5 - 0.75 = y - 1.25: y: 1.5 → 1.375 → 1.3125.
    x, _ = world.round(algorithm, state, x, [0])
    assert x == pytest.approx([1.3125])


def test_scaffold_keeps_the_mean_of_the_memories():
    """With all clients in every round c is always the mean of all c_i."""
    world = heterogeneous()
    algorithm, x, state = Scaffold(clients=4), np.zeros(3), State()
    for _ in range(7):
        x, state = world.round(algorithm, state, x, range(4))
        mean = np.mean([world.memory[i]["control"]["x"] for i in range(4)], axis=0)
        np.testing.assert_allclose(state.slots["control"]["x"], mean, atol=1e-12)


@pytest.mark.long
def test_fednova_converges_where_its_normalised_steps_cancel():
    """FedAvg is biased towards clients with many steps; both match the closed form."""
    world = heterogeneous(steps=(1, 3, 8, 20))
    world.a[:] = 1.0
    biased = world.run(FedAvg(), 300)
    np.testing.assert_allclose(biased, fixed_point(world), atol=1e-9)
    assert np.abs(biased - world.optimum).max() > 0.05
    # Σ pull_i/τ_i (c_i - x) = 0, which nears the optimum as η nears zero.
    pull = (1 - (1 - world.learning_rate) ** np.array(world.steps)) / np.array(world.steps)
    expected = (pull[:, None] * world.c).sum(axis=0) / pull.sum()
    np.testing.assert_allclose(world.run(FedNova(), 600), expected, atol=1e-9)


@pytest.mark.long
def test_fednova_reaches_the_optimum_as_drift_vanishes():
    """With local steps of 1e-11 and a large server rate: to 1e-9, where FedAvg stays 0.05 away.

    The optimum is at zero, where float64 resolves such steps. Lengths are in units of 1e9, so that
    the steps exceed the resolution of a sum.
    """
    unit = 1e9
    world = heterogeneous(steps=(1, 3, 8, 20), learning_rate=1e-11)
    world.c = unit * (world.c - world.optimum)
    biased, unbiased = (
        world.run(algorithm(server_learning_rate=2e9), 400, start=unit) / unit
        for algorithm in (FedAvg, FedNova)
    )
    assert np.abs(biased).max() > 0.05
    np.testing.assert_allclose(unbiased, 0, atol=1e-9)


@pytest.mark.long
def test_feddyn_reaches_the_optimum():
    world = heterogeneous(steps=(60, 60, 60, 60), learning_rate=0.2)
    x = world.run(FedDyn(alpha=1.0, clients=4), 200)
    np.testing.assert_allclose(x, world.optimum, atol=1e-9)


@pytest.mark.long
def test_feddyn_devices_remember_their_gradient_at_the_optimum():
    """h_i is ∇f_i at the optimum, once all agree."""
    world = heterogeneous(steps=(60, 60, 60, 60), learning_rate=0.2)
    world.run(FedDyn(alpha=1.0, clients=4), 200)
    for i in range(4):
        gradient = world.a[i] * (world.optimum - world.c[i])
        np.testing.assert_allclose(world.memory[i]["linear"]["x"], gradient, atol=1e-9)


def test_mimelite_steps_by_the_servers_momentum():
    """Compared with a line-by-line implementation, with three of four clients."""
    world, beta = heterogeneous(), 0.8
    x, m = np.zeros(3), np.zeros(3)
    algorithm, ours, state = MimeLite(momentum=beta), np.zeros(3), State()
    for number in range(12):
        cohort = [(number + k) % 4 for k in range(3)]
        ends, gradients = [], []
        for i in cohort:
            y = x.copy()
            gradients.append(world.a[i] * (x - world.c[i]))
            for _ in range(world.steps[i]):
                gradient = (1 - beta) * world.a[i] * (y - world.c[i]) + beta * m
                y = y - world.learning_rate * gradient
            ends.append(y)
        m = (1 - beta) * np.mean(gradients, axis=0) + beta * m
        x = np.mean(ends, axis=0)
        ours, state = world.round(algorithm, state, ours, cohort)
        np.testing.assert_allclose(ours, x, atol=1e-12)
        np.testing.assert_allclose(state.slots["momentum"]["x"], m, atol=1e-12)


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_qfedavg_steps_as_its_paper_says(q):
    """Δ_k = F^q·L(w - w_k), h_k = q·F^(q-1)·|L(w - w_k)|² + L·F^q; w ← w - ΣΔ_k / Σh_k."""
    world, lipschitz = heterogeneous(learning_rate=0.05), 20.0
    x, state = np.full(3, 0.3), State()
    deltas, curvatures = [], []
    for i in range(4):
        y = x.copy()
        for _ in range(5):
            y = y - 0.05 * world.a[i] * (y - world.c[i])
        step, loss = lipschitz * (x - y), world.loss(i, x)
        deltas.append(loss**q * step)
        curvatures.append(q * loss ** (q - 1) * (step**2).sum() + lipschitz * loss**q)
    expected = x - sum(deltas) / sum(curvatures)
    ours, _ = world.round(QFedAvg(q=q), state, x, range(4))
    np.testing.assert_allclose(ours, expected, rtol=1e-8)


@pytest.mark.long
def test_qfedavg_makes_losses_more_equal():
    """The larger q, the smaller the gap between the worst client and the best."""
    world = heterogeneous(learning_rate=0.02)
    world.max_abs = 1e9  # losses of 20 to the fifth

    def spread(q):
        x = world.run(QFedAvg(q=q), 800)
        return np.ptp([world.loss(i, x) for i in range(4)])

    assert spread(5.0) < spread(1.0) < spread(0.0)


@pytest.mark.parametrize(
    ("algorithm", "name"), [(QFedAvg(q=5.0), "curvature"), (FedNova(), "steps")]
)
@pytest.mark.parametrize("number", [0.0, 1e-300, -5.0])
def test_a_zero_denominator_takes_no_step(algorithm, name, number):
    """F^q too small to sum, or false reports: no round is lost, and no step changes its sign."""
    specs = algorithm.specs({"x": TensorSpec(shape=(3,), dtype=np.dtype(np.float64))})
    partial = Partial(specs, exponent(64.0, 16.0))
    partial.add_array((DELTA, "x"), Full(), weight_units(1.0), np.ones(3))
    partial.add_array((SCALAR, name), Full(), weight_units(1.0), np.array(number))
    partial.count = 1
    new, state = algorithm.finish(State(), {"x": np.ones(3)}, partial)
    np.testing.assert_array_equal(new["x"], np.ones(3))
    assert state.step == 1


def test_memory_of_a_round_that_did_not_count_is_not_used():
    """The same memory gives the same update at every attempt."""
    world = heterogeneous()
    algorithm = Scaffold(clients=4)
    x, state = world.round(algorithm, State(), np.zeros(3), range(4))
    once = world.train(2, algorithm.rule, x, algorithm.sends(state))
    again = world.train(2, algorithm.rule, x, algorithm.sends(state))
    for a, b in zip(once.parts, again.parts, strict=True):
        assert a.values.tobytes() == b.values.tobytes()


def test_a_rule_that_needs_whole_tensors_refuses_slices():
    """A slice of a tensor has no control variate for the rest."""
    part = TensorPart(DELTA, "w", Slice(((0, 2),)), np.ones(2, np.float32))
    settings = RoundSettings(epochs=1, steps=None, batch_size=0, learning_rate=0.1)
    with pytest.raises(UsageError, match="'w' whole from train, as the client rule scaffold"):
        apply_rule(ScaffoldRule(), [part], RuleContext(), settings, 3)


def test_tensors_without_gradients_send_only_their_delta():
    """Such as BatchNorm's statistics."""
    values, before = np.full(3, 2.0, np.float32), np.ones(3, np.float32)
    parts = [TensorPart(DELTA, name, Full(), values, before) for name in ("weight", "running_mean")]
    settings = RoundSettings(epochs=1, steps=None, batch_size=2, learning_rate=0.1)
    local = RuleContext(trainable=frozenset({"weight"}))
    settled = apply_rule(ScaffoldRule(), parts, local, settings, 3)
    sent = {(part.group, part.tensor) for part in settled.parts}
    assert sent == {(DELTA, "weight"), ("control", "weight"), (DELTA, "running_mean")}
    assert settled.memory["control"].keys() == {"weight"}
    # two batches of an epoch over three examples: c⁺ = -1 / (2 · 0.1)
    np.testing.assert_allclose(settled.memory["control"]["weight"], np.full(3, -5.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaffold", {"clients": 4}),
        ("feddyn", {"clients": 4, "alpha": 0.1}),
        ("fednova", {}),
        ("mimelite", {}),
        ("qfedavg", {"q": 1.0}),
    ],
)
def test_a_strategy_has_its_own_rule_and_refuses_another(name, settings):
    """And the settings on the wire rebuild it."""
    algorithm = strategy(name, settings, rule=Plain())
    rule = algorithm.rule
    assert client_rule(rule.name, rule.settings()) == rule
    with pytest.raises(ValueError, match="has its own, got fedprox"):
        strategy(name, settings, rule=FedProx(mu=0.1))


def test_a_rule_without_its_server_part_is_refused():
    """SCAFFOLD's devices need values that only SCAFFOLD's server sends."""
    with pytest.raises(ValueError, match="sends control, which the client rule scaffold needs"):
        FedAvg(rule=ScaffoldRule())


def test_invalid_settings_are_refused():
    for wrong in (lambda: FedDynRule(alpha=0.0), lambda: Scaffold(clients=0)):
        with pytest.raises(ValueError, match="Expected"):
            wrong()
