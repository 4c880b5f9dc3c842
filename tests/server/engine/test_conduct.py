"""Who spoils sums or leaves sessions again and again is drawn last, for a while."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.server.engine.conduct import PAUSE, ROUNDS, Conduct, PastSession, Suspicion, conduct


def session(number, members, *, dropped="", spoiled=False, summed=True):
    return PastSession(
        round=number,
        masked=frozenset(members) - frozenset(dropped),
        dropped=frozenset(dropped),
        summed=summed,
        implausible=spoiled,
    )


def spoils(numbers):
    """Rounds in which x is in a session with others each time, beside one that is well."""
    rest = "abcdefghij"
    return [
        each
        for place, number in enumerate(numbers)
        for each in (
            session(number, "x" + rest[place % 10] + rest[(place + 1) % 10], spoiled=True),
            session(number, [c for c in rest if c not in rest[place % 10 :][:2]]),
        )
    ]


def test_nothing_is_said_of_a_run_without_sessions():
    assert conduct([], 1) == Conduct()


# ---- marks -----------------------------------------------------------------------------------


def test_a_device_with_three_marks_and_twice_the_rate_is_drawn_last():
    """Not its peers, who were in one spoiled sum, or two."""
    assert conduct(spoils([1, 2]), 3).marked == {}
    assert conduct(spoils([1, 2, 3]), 4).marked == {"x": Suspicion(3, 3)}


def test_marks_that_all_share_say_nothing():
    """Of runs whose limits are too tight, or with one session a round, nobody is singled out."""
    past = [session(n, "abcx", spoiled=True) for n in range(1, 9)]
    assert conduct(past, 9) == Conduct()


@pytest.mark.parametrize(("clean", "last"), [(3, False), (4, True)])
def test_the_rate_is_that_of_all_members(clean, last):
    """3 of 6 sums are twice 9 of 36, and no less; more clean sums of others lower the rate."""
    past = [session(n, "xab", spoiled=True) for n in (1, 2, 3)]
    past += [session(n, "x") for n in (4, 5, 6)]
    past += [session(n, "cdefgh") for n in range(1, 1 + clean)]
    assert ("x" in conduct(past, 7).marked) is last


def test_sums_that_never_came_do_not_count():
    """A session that was given up says nothing about what it would have summed."""
    past = spoils([1, 2, 3])
    without = [session(n, "x", summed=False) for n in range(1, 4)] * 9
    assert conduct(past + without, 4).marked == {"x": Suspicion(3, 3)}


def test_a_device_is_drawn_as_others_some_rounds_after_its_last_mark():
    """One more mark, and it is last again."""
    past = spoils([1, 2, 3])
    assert "x" in conduct(past, 3 + PAUSE).marked
    assert conduct(past, 4 + PAUSE).marked == {}
    again = past + spoils([30])
    assert "x" in conduct(again, 31).marked


def test_old_rounds_are_forgotten():
    """So a run of any length reads the same number of sessions."""
    past = spoils([1, 2, ROUNDS])
    assert "x" in conduct(past, ROUNDS + 1).marked
    assert conduct(past, ROUNDS + 2).marked == {}


def test_one_spoiler_among_many_is_found():
    """And its peers are not, when sessions are drawn anew in each round."""
    draw, everyone, past = random.Random(1), [f"c{i:03}" for i in range(400)], []
    for number in range(1, 4):
        order = draw.sample(everyone, 400)
        for start in range(0, 400, 40):
            members = order[start : start + 40]
            past.append(session(number, members, spoiled="c000" in members))
    assert list(conduct(past, 4).marked) == ["c000"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("spoilers", "found", "at_first", "later"),
    [(1, 1, (0.0, 0.1), 0.02), (5, 5, (0.15, 0.4), 0.05), (20, 0, (0.6, 0.85), 1.0)],
)
def test_what_spoilers_cost_a_run(spoilers, found, at_first, later):
    """The figures of docs/masking.md: 640 of 1,000 devices in each of 100 rounds, groups of 64."""
    draw, past, spoiled, caught, innocent = random.Random(7), [], [], set(), 0
    bad = {f"c{i:03}" for i in range(spoilers)}
    for number in range(1, 101):
        last = conduct(past, number).marked.keys()
        caught, innocent = caught | (last & bad), max(innocent, len(last - bad))
        order = draw.sample([f"c{i:03}" for i in range(1000)], 1000)
        cohort = sorted(order, key=last.__contains__)[:640]
        draw.shuffle(cohort)
        members = [set(cohort[start : start + 64]) for start in range(0, 640, 64)]
        past += [session(number, each, spoiled=bool(each & bad)) for each in members]
        spoiled.append(sum(bool(each & bad) for each in members) / 10)
    assert (len(caught), innocent < 100) == (found, True)
    assert at_first[0] <= sum(spoiled[:3]) / 3 <= at_first[1]
    assert sum(spoiled[20:]) / 80 <= later


# ---- drop-outs -------------------------------------------------------------------------------


def test_a_device_that_leaves_three_sessions_in_a_row_is_drawn_last():
    past = [session(n, "abcd", dropped="d") for n in (1, 4, 5)]
    assert conduct(past[:2], 5) == Conduct()
    assert conduct(past, 6) == Conduct(dropped={"d": 3})


def test_a_body_that_comes_ends_the_row():
    past = [session(n, "abcd", dropped="d") for n in (1, 2, 4, 5)] + [session(3, "abcd")]
    past.sort(key=lambda each: each.round)
    assert conduct(past, 6) == Conduct()


def test_a_session_that_says_nothing_of_a_device_leaves_its_row():
    """An operator's command, say, ended it."""
    past = [session(n, "abc", dropped="c") for n in (1, 2)]
    past += [session(3, "", summed=False), session(4, "abc", dropped="c")]
    assert conduct(past, 5).dropped == {"c": 3}


def test_drop_outs_are_forgiven_for_a_while():
    past = [session(n, "abc", dropped="c") for n in (1, 2, 3)]
    assert conduct(past, 3 + PAUSE).dropped == {"c": 3}
    assert conduct(past, 4 + PAUSE).dropped == {}
    assert conduct([*past, session(40, "abc", dropped="c")], 41).dropped == {"c": 4}


# ---- both ------------------------------------------------------------------------------------


SESSIONS = st.lists(
    st.builds(
        session,
        st.integers(1, 140),
        st.sets(st.sampled_from("abcdef"), min_size=1),
        dropped=st.sets(st.sampled_from("abcdef"), max_size=2),
        spoiled=st.booleans(),
    ),
    max_size=60,
).map(lambda found: sorted(found, key=lambda each: each.round))


@given(SESSIONS, st.integers(1, 150))
def test_later_rounds_change_nothing(past, number):
    """What a round is judged by is over when it opens: it is the same after a restart."""
    earlier = [each for each in past if number - ROUNDS <= each.round < number]
    assert conduct(past, number) == conduct(earlier, number)


@given(SESSIONS, st.integers(1, 150))
def test_the_conditions_hold_for_whoever_is_last(past, number):
    """Counted here one by one."""
    found = conduct(past, number)
    counted = [each for each in past if number - ROUNDS <= each.round < number]
    marks = sum(len(each.masked) for each in counted if each.implausible)
    sums = sum(len(each.masked) for each in counted if each.summed)
    for client in "abcdef":
        mine = [each for each in counted if client in each.masked and each.summed]
        spoiled = [each.round for each in mine if each.implausible]
        holds = len(spoiled) >= 3 and spoiled[-1] >= number - PAUSE
        assert (client in found.marked) is (
            holds and len(spoiled) / len(mine) >= 2 * marks / sums - 1e-12
        )
