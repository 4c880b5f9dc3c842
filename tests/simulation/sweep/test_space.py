"""Parameters and the grid over them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep import space
from fedloom.simulation.sweep.space import Parameter


def some(name="x", **settings):
    return Parameter(name=name, setting=name, **settings)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_grid_has_every_combination_once_in_the_order_of_a_product(sizes):
    parameters = [some(f"p{i}", values=tuple(range(n))) for i, n in enumerate(sizes)]
    found = [space.combination(parameters, i) for i in range(space.grid_size(parameters))]
    expected = itertools.product(*(range(n) for n in sizes))
    assert [tuple(each.values()) for each in found] == list(expected)


@pytest.mark.parametrize(
    ("settings", "points"),
    [
        ({"low": 1, "high": 4, "kind": "int"}, [1, 2, 3, 4]),
        ({"low": 0.0, "high": 1.0, "points": 5}, [0.0, 0.25, 0.5, 0.75, 1.0]),
        ({"low": 0.001, "high": 1.0, "points": 4, "log": True}, [0.001, 0.01, 0.1, 1.0]),
        ({"low": 1, "high": 3, "points": 10, "kind": "int"}, [1, 2, 3]),
        ({"low": 0.5, "high": 0.5}, [0.5]),
        ({"low": 2.0, "high": 4.0, "points": 1}, [3.0]),
    ],
)
def test_a_range_is_divided_evenly(settings, points):
    assert some(**settings).grid() == points


def test_lists_and_booleans_keep_their_types():
    values = ([200, 200], True, 2, 0.5, "a", None, {"b": 2})
    parameter = some(values=values)
    assert [parameter.decode(drawn) for drawn in parameter.grid()] == list(values)
    assert [type(parameter.decode(parameter.encode(value))) for value in values] == [
        type(value) for value in values
    ]


@given(st.floats(0, 1), st.booleans())
def test_a_normal_distribution_stays_within_its_bounds(position, log):
    parameter = some(mu=0.0, sigma=2.0, low=0.5, high=3.0, log=log)
    low, high = parameter.distribution.low, parameter.distribution.high
    value = parameter.decode(low + position * (high - low))
    assert 0.5 <= value <= 3.0
    assert parameter.decode(parameter.encode(value)) == pytest.approx(value)


def test_the_median_of_a_normal_distribution_is_its_mean():
    assert some(mu=3.0, sigma=2.0).decode(0.5) == pytest.approx(3.0)
    assert some(mu=3.0, sigma=2.0, log=True).decode(0.5) == pytest.approx(math.exp(3.0))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"low": 1.0},
        {"low": 2.0, "high": 1.0},
        {"low": 0.0, "high": 1.0, "log": True},
        {"low": 0.0, "high": math.inf},
        {"values": (1, 1)},
        {"values": (1, 2, 1.0)},
        {"values": ([8, 4.0], [8.0, 4])},
        {"mu": 0.0, "sigma": 0.0},
        {"mu": 0.0, "sigma": 1.0, "low": 50.0, "high": 60.0},
        {"low": 0.0, "high": 1.0, "points": 0},
    ],
)
def test_a_space_without_values_is_refused(settings):
    with pytest.raises(UsageError, match="x"):
        some(**settings)


def test_a_continuous_range_needs_a_number_of_grid_points():
    with pytest.raises(UsageError, match="points"):
        some(low=0.0, high=1.0).grid()


def test_every_combination_of_a_space_ignores_the_points_of_its_grid():
    parameters = [some("a", values=(1, 2)), some("b", low=1, high=2, kind="int", points=1)]
    found = [tuple(each.values()) for each in space.every(parameters)]
    assert found == [(1, 1), (1, 2), (2, 1), (2, 2)]


@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 60))
def test_a_logarithmic_grid_of_integers_has_no_value_twice(low, more, points):
    """Rounding gives neighbours the same value."""
    grid = some(low=low, high=low + more, kind="int", points=points, log=True).grid()
    assert len(set(grid)) == len(grid)
    assert all(low <= value <= low + more for value in grid)
    if points > 1:
        assert (grid[0], grid[-1]) == (low, low + more)
