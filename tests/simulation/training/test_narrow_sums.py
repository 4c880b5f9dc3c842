"""Simulations with narrow sums: the same grid and the same zeros as on a server."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.output import metrics
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.workers.setup import plan
from support.experiments import experiment

NARROW = {"sum_bits": 16, "precision": 0.01, "max_abs": 2.0, "weighting": "uniform"}


def run(**settings):
    simulation = Simulation(experiment(rounds=2, **settings))
    try:
        return simulation.digest(), list(simulation.rounds())
    finally:
        simulation.close()


def test_records_have_the_share_for_any_number_of_workers():
    """It goes into both files of metrics; exact simulations have none."""
    _, alone = run(**NARROW)
    _, others = run(**NARROW, workers=2)
    shares = [record.underflow for record in alone]
    assert shares == [record.underflow for record in others]
    assert all(0 < share < 1 for share in shares)
    assert metrics.row(alone[0])["sum.underflow"] == str(shares[0])
    assert metrics.from_line(metrics.to_line(alone[0])).underflow == shares[0]
    assert "sum.underflow" in metrics.columns(metrics.row(alone[0]))
    _, exact = run()
    assert {record.underflow for record in exact} == {None}


def test_many_zeros_are_noted_in_the_record():
    """Steps of 2^-2, larger than nearly all changes of a parameter."""
    [first, _] = run(**{**NARROW, "max_abs": 32.0, "precision": 0.2})[1]
    assert first.underflow > 0.5
    assert "were rounded to zero in sums of 16 bits" in first.reason


def test_a_description_names_step_error_and_zeros():
    told = plan(experiment(**NARROW))
    assert told["sums"].startswith("16 bits, rounded to steps of 0.01562 = 2^-6")
    assert told["  largest error"].startswith("0.007813 of a mean, under max_abs 2")
    assert told["  rounded to zero"].startswith("values up to 0.007812 at weight 1")
    assert plan(experiment())["sums"] == "exact"


def test_bounds_that_miss_the_precision_are_refused():
    with pytest.raises(UsageError, match=r"precision >= 0\.0078125.*got 0\.001"):
        experiment(**{**NARROW, "precision": 0.001})
