"""The objective of a sweep."""

import math

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep.objective import Objective, ObjectiveMeter, natural_direction


def meter(values, **settings):
    """A meter that has recorded a test metric for each round."""
    settings = {"metric": "accuracy", "direction": "maximize"} | settings
    found = ObjectiveMeter(Objective(**settings))
    for i, value in enumerate(values, 1):
        name = found.objective.metric
        found.add({"trained": i, "virtual_s": 10.0 * i, "test": {name: value}})
    return found


def test_the_value_is_the_last_or_the_best():
    assert meter([0.2, 0.9, 0.8]).value() == 0.8
    assert meter([0.2, 0.9, 0.8], of="best").value() == 0.9
    assert meter([2.0, 0.5, 0.7], metric="loss", direction="minimize", of="best").value() == 0.5


def test_rounds_to_a_target_are_counted_as_in_the_paper():
    """The curve is made monotone; the crossing is interpolated linearly."""
    found = meter([0.2, 0.6, 0.5, 0.8, 0.9], target=0.7, direction="minimize")
    assert found.value() == pytest.approx(3.5)
    assert found.reached == pytest.approx(3.5)


def test_a_falling_metric_reaches_its_target_from_above():
    found = meter([4.0, 2.0], metric="loss", target=3.0, direction="minimize", count="virtual_s")
    assert found.value() == pytest.approx(15.0)


def test_a_target_met_at_once_counts_as_the_first_measurement():
    assert meter([0.9], target=0.5, direction="minimize").value() == 1.0


def test_a_target_that_is_not_reached_is_worst():
    assert meter([0.1, 0.2], target=0.5, direction="minimize").value() == math.inf


def test_divergence_is_the_worst_value():
    assert meter([0.5, math.nan]).value() == -math.inf
    assert meter([0.5, math.inf], metric="loss", direction="minimize").value() == math.inf
    assert meter([0.5, math.nan], of="best").value() == 0.5


def test_without_measurements_there_is_no_value():
    assert meter([]).value() is None


def test_the_prefix_of_a_metric_selects_its_source():
    record = {"test": {"loss": 1.0}, "training": {"loss": 2.0}, "evaluation": {"loss": 3.0}}
    for name, value in {
        "loss": 1,
        "test.loss": 1,
        "training.loss": 2,
        "evaluation.loss": 3,
    }.items():
        assert Objective(metric=name, direction="minimize").measured(record) == value


def test_signals_have_the_direction_of_the_study():
    """Rounds are minimised while accuracy rises: pruning must not prefer the worst."""
    rounds = Objective(metric="accuracy", direction="minimize", target=0.9)
    assert rounds.signal(0.8) < rounds.signal(0.7)
    assert rounds.signal(math.nan) == math.inf
    plain = Objective(metric="accuracy", direction="maximize")
    assert plain.signal(0.8) > plain.signal(0.7)
    assert plain.signal(math.nan) == -math.inf


def test_virtual_time_needs_devices():
    """A missing timing is an error, not zero."""
    objective = Objective(metric="loss", direction="minimize", target=1.0, count="virtual_s")
    with pytest.raises(UsageError, match="devices"):
        ObjectiveMeter(objective).add({"trained": 1, "virtual_s": None, "test": {"loss": 2.0}})


@pytest.mark.parametrize("name", ["", "elsewhere.loss", "test."])
def test_a_metric_of_an_unknown_source_is_refused(name):
    with pytest.raises(UsageError, match="metric"):
        Objective(metric=name, direction="minimize")


def test_directions_follow_from_names():
    assert natural_direction("training.loss") == natural_direction("mse") == "minimize"
    assert natural_direction("accuracy") == natural_direction("test.f1") == "maximize"


def test_a_metric_of_unknown_direction_needs_one():
    with pytest.raises(UsageError, match="Expected objective with the metric 'mine'"):
        natural_direction("mine")
