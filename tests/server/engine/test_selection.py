"""A draw depends on the seed, the round and the candidates, and is fair."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.server.engine import (
    ClientFailed,
    Round,
    RoundConfig,
    Wake,
    drawn_last,
    select_by,
    uniform,
)
from fedloom.server.engine.selection import CandidatePool
from fedloom.strategies import SELECTIONS, registry
from fedloom.strategies.selection import History, Observation
from fedloom.strategies.selection.roster import Attendance, Roster

NAMES = [f"client-{number:02}" for number in range(12)]
SEEDS = st.integers(-(2**70), 2**70)


@given(SEEDS, st.integers(0, 2**32), st.sets(st.text(), max_size=30), st.data())
def test_a_draw_is_of_different_candidates(seed, number, candidates, data):
    """The requested number, no duplicates, only candidates, and the same each time."""
    count = data.draw(st.integers(0, len(candidates)))
    chosen = uniform(seed, number)(sorted(candidates), count)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= candidates
    assert uniform(seed, number)(sorted(candidates), count) == chosen


@given(st.permutations(NAMES), SEEDS)
def test_the_order_of_attendance_does_not_matter(arrivals, seed):
    """The same clients give the same cohort and the same replacements in the same order."""

    def play(available):
        config = RoundConfig(goal=3, quorum=1)
        round_ = Round(config, select=uniform(seed, 4), now=0.0, available=available)
        round_.handle(Wake(), 0.0)
        for client in list(round_.cohort.phases):
            round_.handle(ClientFailed(client), 1.0)
        return list(round_.cohort.phases)

    assert play(arrivals) == play(NAMES)


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 12), SEEDS)
def test_some_are_drawn_after_all_others(last, count, seed):
    """Only if the others do not suffice; without one of them the draw is what it was."""
    select = uniform(seed, 2)
    chosen = drawn_last(select, last)(NAMES, count)
    assert len(set(chosen)) == len(chosen) == count
    others = len(NAMES) - len(last)
    assert last.isdisjoint(chosen[:others])
    assert set(chosen[others:]) <= last
    assert drawn_last(select, last)(NAMES, count) == chosen
    ahead = sorted(set(NAMES) - last)
    assert drawn_last(select, last)(ahead, min(count, others)) == select(ahead, min(count, others))


def test_replacements_come_from_the_others_first():
    """In an open round: the last ones join when nobody else is left."""
    config = RoundConfig(goal=3, quorum=1)
    select = drawn_last(uniform(3, 4), {NAMES[0], NAMES[5]})
    round_ = Round(config, select=select, now=0.0, available=NAMES)
    round_.handle(Wake(), 0.0)
    while len(round_.cohort) < len(NAMES):
        round_.handle(ClientFailed(list(round_.cohort.phases)[-1]), 1.0)
    assert set(list(round_.cohort.phases)[-2:]) == {NAMES[0], NAMES[5]}


def told():
    """The reports of half the clients in two rounds."""
    history = History()
    for number, clients in ((1, NAMES[:4]), (2, NAMES[3:6])):
        seen = [
            Observation(client=name, num_examples=5 + place, loss=1.0 / (1 + place), seconds=place)
            for place, name in enumerate(clients)
        ]
        history.add(number, seen)
    return history


@pytest.mark.long
@pytest.mark.parametrize("name", SELECTIONS)
@given(st.permutations(NAMES), SEEDS)
def test_every_policy_over_selects_and_replaces(name, arrivals, seed):
    """Failed members are replaced until every client was asked once, in any order of arrival."""
    policy = registry.selection(name, {"label": "x"} if name == "stratified" else None)
    config = RoundConfig(goal=3, over_selection=1.5, quorum=1, deadline_s=8.0)

    def play(available):
        select = select_by(policy, seed, 3, told(), config.deadline_s)
        round_ = Round(config, select=select, now=0.0, available=available)
        round_.handle(Wake(), 0.0)
        asked = list(round_.cohort.phases)
        assert len(asked) == 5
        for client in asked:
            round_.handle(ClientFailed(client), 1.0)
        while set(asked) != set(round_.cohort.phases):
            new = [client for client in round_.cohort.phases if client not in asked]
            asked += new
            for client in new:
                round_.handle(ClientFailed(client), 1.0)
        return asked

    everyone = play(arrivals)
    assert sorted(everyone) == NAMES
    assert play(NAMES) == everyone


def test_a_draw_does_not_change_between_versions():
    """A stored seed gives this cohort on every machine and with every NumPy."""
    assert uniform(2026, 7)(NAMES, 4) == ["client-08", "client-10", "client-00", "client-09"]


def test_seeds_and_rounds_give_different_draws():
    """Also neighbouring ones."""
    draws = {tuple(uniform(seed, number)(NAMES, 12)) for seed in range(10) for number in range(10)}
    assert len(draws) == 100


def test_every_client_and_every_pair_is_equally_likely():
    """Over 4,000 rounds each count is within five standard deviations of its expectation."""
    rounds, count, size = 4000, 4, len(NAMES)
    clients, pairs = Counter(), Counter()
    for number in range(rounds):
        chosen = sorted(uniform(1, number)(NAMES, count))
        clients.update(chosen)
        pairs.update((a, b) for a in chosen for b in chosen if a < b)
    for seen, probability in ((clients, count / size), (pairs, count * 3 / (size * 11))):
        deviation = (rounds * probability * (1 - probability)) ** 0.5
        assert all(abs(n - rounds * probability) < 5 * deviation for n in seen.values())
    assert len(pairs) == size * (size - 1) // 2


@pytest.mark.long
def test_replacements_are_drawn_independently_of_the_cohort():
    """Each remaining client is equally likely to come next."""
    following = Counter()
    for number in range(3000):
        pool = CandidatePool(uniform(3, number), NAMES[:4])
        pool.take(1)
        following[pool.pop()] += 1
    assert all(abs(n - 750) < 5 * (3000 * 3 / 16) ** 0.5 for n in following.values())


def test_the_pool_tracks_clients_that_leave_and_return():
    """Also clients that were drawn already: a place goes to one idle client, once."""
    for left_over in range(3):
        pool = CandidatePool(uniform(0, 0), map(str, range(24)))
        places = [pool.pop()]
        gone, back = pool._drawn[1:3]  # drawn, waits for a free place
        pool.discard(gone)
        pool.discard(back)
        pool.add(back)
        pool.add("newcomer")
        assert len(pool) == 23
        places += [pool.pop() for _ in range(23 - left_over)]
        assert gone not in places
        assert len(set(places)) == len(places)
        assert len(pool) == left_over
    assert {pool.pop(), pool.pop()} | set(places) >= {back, "newcomer"}
    assert pool.pop() is None


def test_a_client_that_reconnects_often_uses_no_memory():
    """A hundred thousand times."""
    pool = CandidatePool(uniform(0, 0), "ab")
    pool.pop()
    for _ in range(100_000):
        pool.add("z")
        pool.discard("z")
    assert len(pool) == 1
    assert len(pool._drawn) <= 1


@pytest.mark.parametrize(
    "wrong", [lambda c, n: [], lambda c, n: ["a"] * n, lambda c, n: ["stranger", "a"][:n]]
)
def test_a_selection_with_unknown_or_repeated_clients_is_refused(wrong):
    pool = CandidatePool(wrong, "abc")
    with pytest.raises(ValueError, match="Expected 2 different candidates"):
        pool.take(2)
    pool = CandidatePool(wrong, [*"abcdefghi"])
    with pytest.raises(ValueError, match="Expected 2 different candidates"):
        pool.pop()


@given(st.lists(st.tuples(st.integers(0, 11), st.booleans())), st.integers(0, 2**32))
def test_clients_that_come_and_leave_by_place_are_those_by_name(moves, seed):
    roster = Roster(NAMES)
    by_place, by_name = (
        CandidatePool(uniform(seed, 1), Attendance(roster, np.arange(12) % 2 == 0))
        for _ in range(2)
    )
    by_place.follow(moves)
    for place, comes in moves:
        (by_name.add if comes else by_name.discard)(NAMES[place])
    assert list(by_place) == list(by_name)
    assert len(by_place) == len(by_name)
    assert [by_place.pop() for _ in NAMES] == [by_name.pop() for _ in NAMES]
