"""A draw from a roster's places is the draw from the names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.server.engine import ClientFailed, Left, Round, RoundConfig, Wake, uniform
from fedloom.server.engine.events import Attended
from fedloom.server.engine.selection import CandidatePool, select_by
from fedloom.strategies import SELECTIONS, registry
from fedloom.strategies.selection import Candidates, History, Observation
from fedloom.strategies.selection.draws import smallest
from fedloom.strategies.selection.roster import Attendance, Roster

NAMES = st.sets(st.text(max_size=4), min_size=2, max_size=30)
EVEN = st.sets(st.text("abä0", min_size=3, max_size=3), min_size=2, max_size=30)


def _there(roster, names):
    return np.array([name in names for name in roster.names], np.bool_)


@given(NAMES | EVEN, st.data())
def test_candidates_are_their_names_in_order(names, data):
    """As a sequence, and for the digest of a draw."""
    roster = Roster(data.draw(st.permutations(sorted(names))))
    chosen = data.draw(st.sets(st.sampled_from(sorted(names))))
    candidates = Candidates(roster, np.flatnonzero(_there(roster, chosen)))
    expected = sorted(chosen)
    assert list(candidates) == expected == candidates[:]
    assert [candidates[place] for place in range(len(candidates))] == expected
    assert candidates[1:3] == expected[1:3]
    count = len(expected)
    assert list(uniform(3, 1)(candidates, count)) == uniform(3, 1)(expected, count)


def _told(names):
    history = History()
    seen = [
        Observation(client=name, num_examples=5 + place, loss=1.0 / (1 + place), seconds=place)
        for place, name in enumerate(names)
    ]
    history.add(1, seen)
    return history


@pytest.mark.long
@pytest.mark.parametrize("policy", SELECTIONS)
@given(names=st.sets(st.text("xyz", max_size=3), min_size=6, max_size=20), data=st.data())
def test_a_round_draws_the_same_from_a_roster(policy, names, data):
    """With every policy: cohort and replacements, with clients that come and go."""
    everybody = sorted(names)
    here = data.draw(st.sets(st.sampled_from(everybody), min_size=4))
    moves = data.draw(st.lists(st.tuples(st.booleans(), st.sampled_from(everybody))))
    made = registry.selection(policy, {"label": "x"} if policy == "stratified" else None)
    roster = Roster(everybody)

    def play(available):
        select = select_by(made, 7, 3, _told(everybody[:3]), 8.0)
        config = RoundConfig(goal=3, quorum=1, deadline_s=8.0)
        round_ = Round(config, select=select, now=0.0, available=available)
        round_.handle(Wake(), 0.0)
        failed = 0
        for comes, name in moves:
            round_.handle(Attended(name) if comes else Left(name), 1.0)
        while failed < len(round_.cohort.phases):
            client = list(round_.cohort.phases)[failed]
            failed += 1
            round_.handle(ClientFailed(client), 1.0)
        return list(round_.cohort.phases)

    assert play(Attendance(roster, _there(roster, here))) == play(sorted(here))


def test_a_pool_counts_its_clients():
    """Repeated adds and removals count once."""
    roster = Roster("cab")
    there = _there(roster, "ab")
    pool = CandidatePool(uniform(0, 0), Attendance(roster, there))
    pool.add("a")
    pool.add("c")
    assert (len(pool), list(pool)) == (3, ["a", "b", "c"])
    pool.discard("a")
    pool.discard("a")
    assert (len(pool), list(pool)) == (2, ["b", "c"])
    assert list(there) == [True, True, False], "what was given is not changed"


@pytest.mark.parametrize("chosen", [["a", "a"], ["a", "d"], ["a", "z"], ["a"]])
def test_a_wrong_draw_from_a_roster_is_an_error(chosen):
    """Duplicates, absent or unknown clients, or too few."""
    roster = Roster("abcd")
    pool = CandidatePool(lambda *_: chosen, Attendance(roster, _there(roster, "abc")))
    with pytest.raises(ValueError, match="Expected 2 different candidates"):
        pool.take(2)


@given(st.lists(st.integers(0, 5), min_size=1), st.integers(1, 8))
def test_equal_numbers_are_taken_in_order(numbers, count):
    """The smallest come first, and the first of equal ones."""
    found = smallest(np.array(numbers, np.uint64), count).tolist()
    assert [numbers[place] for place in found] == sorted(numbers)[:count]
    assert found == sorted(found, key=lambda place: (numbers[place], place))
