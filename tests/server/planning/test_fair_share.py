"""Fair sharing of clients among runs, and the order of the queue, against independent oracles."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.fair_share import (
    Demand,
    FairShare,
    Queued,
    check_priority,
    check_share,
    positions,
    to_start,
)

CONTENDERS = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from([Fraction(1, 4), 1, 2, 3, Fraction(7, 2), 10])),
    min_size=2,
    max_size=6,
)
"""Cohort and share of each run."""


def always(_run):
    return True


def waiting(clients=1):
    return lambda _run: Demand(waiting=True, clients=clients)


def shared(contenders):
    fair = FairShare()
    for number, (_, share) in enumerate(contenders):
        fair.add(str(number), share=float(share), at=float(number))
    return fair


def serve(fair, contenders, times):
    """Let the first run take its cohort, so many times; returns the tasks of each, exactly."""
    tasks = [0] * len(contenders)
    for _ in range(times):
        first = int(fair.order()[0])
        fair.take(str(first), contenders[first][0], always)
        tasks[first] += contenders[first][0]
    return tasks


@given(CONTENDERS, st.integers(1, 300))
def test_waiting_runs_are_within_a_cohort_of_their_shares(contenders, times):
    """Goyal's bound for each two runs, and the exact fluid share of each, in fractions."""
    tasks = serve(shared(contenders), contenders, times)
    normal = [count / Fraction(share) for count, (_, share) in zip(tasks, contenders, strict=True)]
    cohorts = [Fraction(size) / Fraction(share) for size, share in contenders]
    tiny = Fraction(1, 10**6)  # of the virtual times, which are floats
    for i in range(len(contenders)):
        for j in range(i):
            assert abs(normal[i] - normal[j]) <= cohorts[i] + cohorts[j] + tiny
    fluid = Fraction(sum(tasks)) / sum(Fraction(share) for _, share in contenders)
    for mine, cohort in zip(normal, cohorts, strict=True):
        assert abs(mine - fluid) <= cohort + max(cohorts) + tiny


@given(CONTENDERS, st.integers(1, 40))
def test_no_run_waits_for_ever_among_equals(contenders, served):
    """Between two of its turns the others get at most what its cohort is worth, and one more."""
    fair = shared(contenders)
    serve(fair, contenders, served)
    for run, (cohort, share) in enumerate(contenders):
        others = [c for number, c in enumerate(contenders) if number != run]
        bound = sum(
            Fraction(cohort) / Fraction(share) * Fraction(s) / size + 2 for size, s in others
        )
        rounds = 0
        while fair.order()[0] != str(run):
            first = int(fair.order()[0])
            fair.take(str(first), contenders[first][0], always)
            rounds += 1
            assert rounds <= bound


@given(CONTENDERS, st.integers(1, 200), st.integers(1, 60))
def test_a_run_that_was_away_catches_nothing_up(contenders, away, times):
    """While it wants no clients it gains no claim: from then on the bound holds as for new runs."""
    fair, absent = shared(contenders), "0"
    present = [str(n) for n in range(1, len(contenders))]
    for _ in range(away):
        first = next(run for run in fair.order() if run in present)
        fair.take(first, contenders[int(first)][0], lambda run: run != absent)
    tasks = serve(fair, contenders, times)
    cohorts = [Fraction(size) / Fraction(share) for size, share in contenders]
    normal = [count / Fraction(share) for count, (_, share) in zip(tasks, contenders, strict=True)]
    for other in range(1, len(contenders)):
        # Its own cohort and that of the run which was served last, beside the pair's.
        lead = cohorts[0] + cohorts[other] + max(cohorts) + Fraction(1, 10**6)
        assert normal[0] - normal[other] <= lead


def test_shares_of_two_to_one_give_two_turns_of_three():
    contenders = [(10, 2), (10, 1)]
    assert serve(shared(contenders), contenders, 30) == [200, 100]


def test_a_large_cohort_is_not_starved_by_a_small_one():
    contenders = [(100, 1), (1, 1)]
    assert serve(shared(contenders), contenders, 1010) == [1000, 1000]


def test_equals_come_in_the_order_of_submission():
    fair = FairShare()
    fair.add("b", at=2.0)
    fair.add("a", at=3.0)
    fair.add("c", at=1.0)
    assert fair.order() == ["c", "b", "a"]


def test_a_higher_priority_comes_first_whatever_it_had():
    fair = FairShare()
    fair.add("low", at=1.0)
    fair.add("high", at=2.0, priority=1)
    fair.take("high", 1000, always)
    assert fair.order() == ["high", "low"]
    fair.change("low", priority=2, share=1.0)
    assert fair.order() == ["low", "high"]


def test_a_new_run_starts_level_with_the_others():
    """It neither waits for what they had before, nor comes first until it has as much."""
    fair = FairShare()
    fair.add("old", at=1.0)
    for _ in range(50):
        fair.take("old", 1, always)
    fair.add("new", at=2.0)
    assert serve_names(fair, 4) == ["new", "old", "new", "old"]


def serve_names(fair, times):
    taken = []
    for _ in range(times):
        taken.append(fair.order()[0])
        fair.take(taken[-1], 1, always)
    return taken


def test_a_run_leaves_clients_to_those_before_it_that_wait():
    fair = FairShare()
    fair.add("a", at=1.0)
    fair.add("b", at=2.0)
    assert fair.set_aside("b", waiting(5)) == 5
    assert fair.set_aside("a", waiting(5)) == 0
    idle = Demand(waiting=False, clients=5)
    assert fair.set_aside("b", lambda _run: idle) == 0


def test_a_higher_priority_keeps_what_its_next_round_needs():
    """Otherwise a run of a lower priority would take each client that finishes early."""
    fair = FairShare()
    fair.add("low", at=1.0)
    fair.add("high", at=2.0, priority=1)
    assert fair.set_aside("low", lambda _run: Demand(waiting=False, clients=3)) == 3
    assert fair.set_aside("high", waiting(7)) == 0


def test_runs_of_other_studies_leave_each_other_nothing():
    fair = FairShare()
    fair.add("cardio", study="cardio", priority=9, at=1.0)
    fair.add("onco", study="onco", at=2.0)
    assert fair.set_aside("onco", waiting(5)) == 0
    fair.take("cardio", 100, lambda _run: False)
    fair.add("later", study="onco", at=3.0)
    assert [run for run in fair.order() if run != "cardio"] == ["onco", "later"]


def test_a_removed_run_leaves_no_trace():
    fair = FairShare()
    fair.add("a", at=1.0)
    fair.add("b", at=2.0)
    fair.remove("a")
    fair.remove("a")
    assert (len(fair), fair.set_aside("b", waiting())) == (1, 0)


@pytest.mark.parametrize("share", [0.0, -1.0, 0.0009, 1001.0, float("inf"), float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(UsageError, match="Expected a share from"):
        check_share(share)


@pytest.mark.parametrize("priority", [-1001, 1001])
def test_a_priority_out_of_range_is_refused(priority):
    with pytest.raises(UsageError, match="Expected a priority from"):
        check_priority(priority)


QUEUES = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), st.integers(-2, 2), st.integers(0, 5)), max_size=12
)


def queue(rows):
    return [
        Queued(run=f"run{i:02}", study=study, priority=priority, submitted=float(at))
        for i, (study, priority, at) in enumerate(rows)
    ]


@given(
    QUEUES, st.integers(0, 3), st.dictionaries(st.sampled_from(["", "a", "b"]), st.integers(0, 4))
)
def test_the_queue_starts_the_first_of_each_study_that_have_a_place(rows, most, running):
    """An oracle takes one run after another, each time the best one that has a place."""
    left, count, expected = queue(rows), dict(running), []
    while True:
        free = [q for q in left if not most or count.get(q.study, 0) < most]
        if not free:
            break
        best = min(free, key=lambda q: (-q.priority, q.submitted, q.run))
        left.remove(best)
        count[best.study] = count.get(best.study, 0) + 1
        expected.append(best.run)
    assert to_start(queue(rows), running, most) == expected


@given(QUEUES)
def test_a_place_counts_those_before_it_in_its_study(rows):
    found = positions(queue(rows))
    for mine in queue(rows):
        before = [
            q
            for q in queue(rows)
            if q.study == mine.study
            and (-q.priority, q.submitted, q.run) < (-mine.priority, mine.submitted, mine.run)
        ]
        assert found[mine.run] == len(before) + 1
