"""The future-event list is a list that is sorted by time and order of adding."""

from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedloom.simulation.clock.future_events import FAILS, REPORTS, FutureEvents

TIMES = st.integers(0, 5).map(float)  # many events at one time
EVENTS = st.lists(st.tuples(TIMES, st.sampled_from([REPORTS, REPORTS, FAILS])), max_size=8)
STEPS = st.one_of(
    st.tuples(st.just("add"), EVENTS),
    st.tuples(st.just("add_all"), EVENTS),
    st.tuples(st.just("pop"), st.integers(1, 4)),
    st.tuples(st.just("pop_reports"), st.tuples(TIMES, st.integers(0, 5))),
    st.tuples(st.just("withdraw"), st.integers(0, 30)),
)


@given(steps=st.lists(STEPS, max_size=12), refused=st.frozensets(st.integers(0, 30), max_size=8))
def test_events_come_in_order_of_time_and_of_adding(steps, refused):
    future, plain, added = FutureEvents(refused), [], 0

    def add(events):
        nonlocal added
        new = [(at_s, added + n + 1, what, added + n) for n, (at_s, what) in enumerate(events)]
        added += len(new)  # each event is of another device
        plain.extend(new)
        plain.sort()
        return new

    for step, how in steps:
        if step == "add":
            for at_s, _, what, place in add(how):
                future.add(at_s, what, place)
        elif step == "add_all":
            new = np.array(add(how)).reshape(-1, 4)
            future.add_all(new[:, 0], new[:, 2].astype(int), new[:, 3].astype(int))
        elif step == "pop":
            for _ in range(min(how, len(plain))):
                first = plain.pop(0)
                assert future.peek() == first
                assert future.pop() == first
        elif step == "pop_reports":
            before_s, most = how
            places, times = future.pop_reports(before_s, most)
            assert len(places) <= most
            for place, at_s in zip(places, times, strict=True):
                event = plain.pop(0)
                assert (event[0], event[2], event[3]) == (at_s, REPORTS, place)
                assert at_s < before_s
                assert place not in refused
        else:
            plain[:] = [event for event in plain if event[3] != how]
            future.withdraw(how)
        assert future.all() == plain
        assert future.peek()[0] == (plain[0][0] if plain else inf)


def test_all_updates_of_a_cohort_before_another_event_are_removed_at_once():
    future = FutureEvents(refused=[7])
    future.add_all(
        np.array([4.0, 1.0, 2.0, 3.0, 6.0]),
        np.array([REPORTS, REPORTS, REPORTS, REPORTS, FAILS]),
        np.array([7, 4, 5, 6, 8]),
    )
    future.add(2.5, REPORTS, 9)
    assert future.pop_reports(inf, 100) == ([4, 5, 9, 6], [1.0, 2.0, 2.5, 3.0])
    assert future.pop_reports(inf, 100) == ([], [])  # the next update is refused
    assert [future.pop()[3], future.pop()[3]] == [7, 8]
