"""Rounds are counted as in McMahan et al.: best accuracy so far, interpolated at the crossing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation.studies.mcmahan2017.counting import monotone, rounds_to, thinned

CURVES = st.lists(st.floats(0, 1), min_size=1, max_size=300).map(
    lambda accuracies: list(enumerate(accuracies, 1))
)


def test_a_target_that_is_never_reached_has_no_count():
    assert rounds_to([(1, 0.5), (2, 0.9699)], 0.97) is None
    assert rounds_to([], 0.97) is None


def test_a_target_reached_at_the_first_point_counts_as_that_round():
    assert rounds_to([(1, 0.98), (2, 0.99)], 0.97) == 1.0
    assert rounds_to([(5, 0.97)], 0.97) == 5.0


def test_the_crossing_is_interpolated_between_its_neighbours():
    """Halfway up from 0.96 to 0.98 is halfway from round 2 to round 3."""
    assert rounds_to([(1, 0.9), (2, 0.96), (3, 0.98)], 0.97) == pytest.approx(2.5)
    assert rounds_to([(1, 0.9), (2, 0.97), (3, 0.98)], 0.97) == pytest.approx(2.0)


def test_a_dip_before_the_crossing_counts_as_the_best_before_it():
    """The line starts at 0.96, the best so far, not at 0.90."""
    curve = [(1, 0.94), (2, 0.96), (3, 0.90), (4, 0.98)]
    assert rounds_to(curve, 0.97) == pytest.approx(3.5)


def test_points_may_be_several_rounds_apart():
    assert rounds_to([(10, 0.9), (20, 0.96), (30, 1.0)], 0.97) == pytest.approx(22.5)


def test_an_accuracy_that_is_no_number_is_no_improvement():
    assert monotone([(1, 0.5), (2, math.nan), (3, 0.4)]) == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_rounds_out_of_order_are_refused():
    with pytest.raises(UsageError, match="ascending"):
        rounds_to([(2, 0.5), (1, 0.6)], 0.97)


@given(curve=CURVES, target=st.floats(0.01, 1), more=st.lists(st.floats(0, 1)))
def test_later_points_do_not_change_the_count(curve, target, more):
    count = rounds_to(curve, target)
    if count is not None:
        longer = curve + list(enumerate(more, len(curve) + 1))
        assert rounds_to(longer, target) == count


@given(curve=CURVES, target=st.floats(0.01, 1))
def test_the_count_is_within_the_round_that_reached_the_target(curve, target):
    """After the round before it, and not later than it."""
    count = rounds_to(curve, target)
    reached = next((number for number, accuracy in curve if accuracy >= target), None)
    assert (count is None) == (reached is None)
    if reached is not None:
        assert max(reached - 1, 1) - 1e-9 <= count <= reached + 1e-9


@given(curve=CURVES, target=st.floats(0.01, 1))
def test_a_thinned_curve_has_the_same_count(curve, target):
    count, again = rounds_to(curve, target), rounds_to(thinned(curve, target, keep=10), target)
    assert (count is None) == (again is None)
    assert count is None or again == pytest.approx(count)
