"""The server learning rate follows its schedule, whatever the optimizer."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import (
    DELTA,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Full,
    Partial,
    Schedule,
    TensorSpec,
    exponent,
    strategy,
    weight_units,
)
from fedloom.strategies.state import state_from_arrays, state_to_arrays

SHAPES = [
    Schedule(),
    Schedule(name="step", rounds=3, factor=0.5),
    Schedule(name="cosine", rounds=8, floor=0.1),
    Schedule(name="inverse_sqrt", warmup_rounds=4),
]
WARM = [
    Schedule(name=s.name, warmup_rounds=5, rounds=s.rounds, factor=s.factor, floor=s.floor)
    for s in SHAPES
]


def partial_of(delta):
    spec = TensorSpec(shape=(), dtype=np.dtype(np.float64))
    partial = Partial({(DELTA, "x"): spec}, exponent(8.0, 16.0))
    partial.add_array((DELTA, "x"), Full(), weight_units(1.0), np.asarray(delta))
    return partial


def trajectory(optimizer, deltas, resume_at=None):
    """The path of a scalar from 0 under these mean deltas."""
    model, state, points = {"x": np.array(0.0)}, optimizer.init({}), []
    for number, delta in enumerate(deltas):
        if number == resume_at:
            state = state_from_arrays(state_to_arrays(state))
        model, state = optimizer.finish(state, model, partial_of(delta))
        points.append(float(model["x"]))
    return points


def test_the_schedules_by_hand():
    """Compared with closed forms, round by round."""
    assert [Schedule(warmup_rounds=3).at(t) for t in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    step = Schedule(name="step", rounds=2, warmup_rounds=1)
    np.testing.assert_allclose(
        [step.at(t) for t in range(6)], [0.5, 1, 1, 0.1, 0.1, 0.01], rtol=1e-15
    )
    cosine = Schedule(name="cosine", rounds=4, floor=0.2)
    half = math.sqrt(0.5)
    wanted = [1, 0.6 + 0.4 * half, 0.6, 0.6 - 0.4 * half, 0.2, 0.2]
    np.testing.assert_allclose([cosine.at(t) for t in range(6)], wanted, rtol=1e-14)
    root = Schedule(name="inverse_sqrt", warmup_rounds=4)
    wanted = [0.2, 0.4, 0.6, 0.8, 1, math.sqrt(4 / 5), math.sqrt(4 / 6), math.sqrt(4 / 7)]
    np.testing.assert_allclose([root.at(t) for t in range(8)], wanted, rtol=1e-15)


@pytest.mark.parametrize("schedule", SHAPES + WARM, ids=repr)
@given(st.integers(0, 10**6))
def test_a_factor_is_between_0_and_1(schedule, finished):
    """It rises in the warm-up, then falls."""
    now, after = schedule.at(finished), schedule.at(finished + 1)
    assert 0 <= now <= 1
    if finished < schedule.warmup_rounds:
        assert after > now
    else:
        assert after <= now


@pytest.mark.parametrize("schedule", WARM, ids=repr)
def test_the_mean_is_scaled_round_by_round(schedule):
    """FedAvg moves by the sum of factor · rate · delta, also after a restart."""
    deltas = [1.0, -2.0, 0.5, 3.0, 1.0, 1.0, -1.0, 2.0, 0.25, 1.0]
    optimizer = FedAvg(server_learning_rate=0.5, schedule=schedule)
    wanted = np.cumsum([0.5 * schedule.at(t) * delta for t, delta in enumerate(deltas)])
    np.testing.assert_allclose(trajectory(optimizer, deltas), wanted, rtol=1e-12)
    assert trajectory(optimizer, deltas, resume_at=4) == trajectory(optimizer, deltas)


@pytest.mark.parametrize("optimizer", [FedAvgM, FedAdam, FedYogi], ids=lambda kind: kind.__name__)
def test_any_optimizer_steps_by_the_scheduled_rate(optimizer):
    """Its memory does not change; only the step is scaled."""
    deltas = [1.0, -2.0, 0.5, 3.0, 1.0]
    schedule = Schedule(name="cosine", rounds=5, warmup_rounds=1)
    plain = np.diff([0.0, *trajectory(optimizer(server_learning_rate=0.3), deltas)])
    scheduled = trajectory(optimizer(server_learning_rate=0.3, schedule=schedule), deltas)
    factors = [schedule.at(t) for t in range(5)]
    np.testing.assert_allclose(scheduled, np.cumsum(plain * factors), rtol=1e-12)


def test_a_cosine_may_end_at_0():
    """The model does not change then; the last round is not refused."""
    optimizer = FedAvg(schedule=Schedule(name="cosine", rounds=2))
    assert trajectory(optimizer, [1.0, 1.0, 1.0, 1.0]) == pytest.approx([1.0, 1.5, 1.5, 1.5])


def test_a_schedule_is_a_table_in_a_run_file():
    table = json.loads('{"name": "step", "rounds": 10, "warmup_rounds": 2}')
    assert strategy("fedadam", {"schedule": table}).schedule == Schedule(
        name="step", rounds=10, warmup_rounds=2
    )
    assert repr(Schedule(name="step", rounds=10)) == "Schedule(name='step', rounds=10)"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"name": "linear"}, ValueError, 'as "constant" or "step" or "cosine" or "inverse_sqrt"'),
        ({"name": "step"}, ValueError, r"Expected schedule\.rounds with step"),
        ({"name": "cosine", "rounds": 5, "factor": 0.5}, ValueError, r"no schedule\.factor with"),
        ({"rounds": 5}, ValueError, r"no schedule\.rounds with constant"),
        ({"name": "step", "rounds": 5, "factor": 2.0}, ValueError, "from 0 to 1"),
        ({"name": "step", "rounds": 0}, ValueError, "rounds >= 1"),
        ({"warmup_rounds": -1}, ValueError, "warmup_rounds >= 0"),
        ({"warmup": 3}, ValueError, r"'strategy\.schedule\.warmup'. Did you mean 'warmup_rounds'"),
        ("cosine", TypeError, "schedule as a table"),
    ],
)
def test_an_invalid_schedule_is_refused(settings, error, message):
    """When the strategy is built."""
    with pytest.raises(error, match=message):
        strategy("fedavg", {"schedule": settings})
