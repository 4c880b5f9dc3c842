"""Metrics are averaged by examples, and no order of arrival shows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import weighted_mean

reports = st.lists(
    st.tuples(
        st.integers(0, 10**9),
        st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats(allow_nan=True)),
    )
)


def test_each_metric_is_averaged_over_those_who_have_it():
    """A client without a metric does not count for it."""
    assert weighted_mean(
        [
            (1, {"loss": 4.0, "accuracy": 0.5}),
            (3, {"loss": 8.0}),
            (0, {"unused": 1.0}),
        ]
    ) == {"accuracy": 0.5, "loss": 7.0}


@given(reports, st.randoms())
def test_order_does_not_change_a_bit_of_a_metric(items, random):
    """Any permutation gives the same mean, overflow and NaN included."""
    shuffled = list(items)
    random.shuffle(shuffled)
    assert repr(weighted_mean(items)) == repr(weighted_mean(shuffled))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_makes_its_own_mean_nan(value):
    """The other metrics are not disturbed."""
    means = weighted_mean([(1, {"loss": value, "accuracy": 1.0}), (1, {"loss": 1.0})])
    assert math.isnan(means["loss"])
    assert means["accuracy"] == 1.0


def test_a_sum_past_float64_is_nan():
    """Finite terms whose sum is not do not raise."""
    assert math.isnan(weighted_mean([(1, {"loss": 1e308}), (1, {"loss": 1e308})])["loss"])


def test_a_negative_number_of_examples_is_refused():
    """Nobody has fewer than none."""
    with pytest.raises(ValueError, match="num_examples >= 0"):
        weighted_mean([(-1, {})])
