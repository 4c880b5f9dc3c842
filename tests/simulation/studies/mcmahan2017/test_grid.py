"""The grid of learning rates grows until the best has worse neighbours on both sides."""

from hypothesis import given
from hypothesis import strategies as st

from fedloom.simulation.studies.mcmahan2017 import grid
from fedloom.simulation.studies.mcmahan2017.grid import SIXTH, THIRD, RateScore


def _search(rounds, start, finest):
    """Standings of all rates that a search tries; `k` gives their rounds."""
    scores = {}
    while (k := grid.following(scores, start, finest)) is not None:
        assert k not in scores
        scores[k] = rounds(k)
    return scores


def test_the_guess_is_tried_first():
    assert grid.following({}, -4) == -4


def test_a_best_guess_needs_its_two_neighbours():
    scores = _search(lambda k: RateScore(10 + abs(k + 4), 0.98), -4, THIRD)
    assert sorted(scores) == [-6, -4, -2]


def test_the_finer_grid_has_rates_between_the_coarse_ones():
    scores = _search(lambda k: RateScore(10 + abs(k + 4), 0.98), -4, SIXTH)
    assert sorted(scores) == [-6, -5, -4, -3, -2]


def test_the_grid_grows_towards_the_better_side():
    scores = _search(lambda k: RateScore(10 + abs(k - 2), 0.98), -6, THIRD)
    assert grid.best(scores) == 2
    assert max(scores) == 4


def test_without_the_target_the_most_accurate_rate_is_best():
    near, far = RateScore(None, 0.96), RateScore(None, 0.5)
    assert grid.best({-4: far, -2: near}) == -2
    assert grid.best({-4: RateScore(900.0, 0.97), -2: near}) == -4


def test_the_best_of_equals_is_the_lowest():
    """The choice does not depend on the order of the runs."""
    assert grid.best({0: RateScore(5.0, 0.97), -2: RateScore(5.0, 0.97)}) == -2


def test_the_best_at_an_edge_is_not_in_the_middle():
    assert not grid.in_the_middle({-4: RateScore(5.0, 0.97), -2: RateScore(6.0, 0.97)})
    assert not grid.in_the_middle({})


def test_rates_are_those_of_the_paper():
    """Steps of 10^(1/3) and 10^(1/6) from 0.1."""
    assert [grid.value(k) for k in (-8, -6, -5, -4)] == [0.0464, 0.1, 0.147, 0.215]


@given(
    where=st.integers(grid.LOWEST, grid.HIGHEST),
    start=st.integers(grid.LOWEST, grid.HIGHEST),
    finest=st.sampled_from([THIRD, SIXTH]),
)
def test_a_single_minimum_is_found_from_anywhere(where, start, finest):
    """The fine grid finds it, the coarse one comes within a step."""
    scores = _search(lambda k: RateScore(10.0 + abs(k - where), 0.98), start, finest)
    assert abs(grid.best(scores) - where) < finest
