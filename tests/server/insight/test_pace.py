"""The time left follows from what the latest rounds really took."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedloom.server.insight.pace import FEW, cycles, rounds_an_hour, time_left


def rounds(*took, gap_s=1.0, start_s=0.0):
    """Rounds one after another: seconds, and `abandoned`, `stopped`, `evaluate` or `open`."""
    made, at = [], start_s
    for each in took:
        seconds, what = each if isinstance(each, tuple) else (each, "committed")
        made.append(
            SimpleNamespace(
                kind="evaluate" if what == "evaluate" else "train",
                state={"evaluate": "committed", "stopped": "abandoned", "open": "reporting"}.get(
                    what, what
                ),
                cause={"stopped": "stopped", "abandoned": "quorum"}.get(what),
                opened_at=at,
                closed_at=None if what == "open" else at + seconds,
            )
        )
        at += seconds + gap_s
    return made, at - gap_s


def left(number, *took, **more):
    made, now = rounds(*took, **more)
    return time_left(made, number, now)


def test_equal_rounds_give_one_figure():
    """Ten rounds of 4 s and a second between them: 20 more take 100 s, without a range."""
    found = left(20, *[4.0] * 10)
    assert found.expected_s == pytest.approx(100.0, rel=0.03)
    assert found.range_s is None


def test_abandoned_rounds_count():
    """Every second attempt is abandoned after 60 s, as in the report that asked for this."""
    found = left(10, *[(60.0, "abandoned"), 4.0] * 6)
    assert found.expected_s == pytest.approx(10 * 66.0, rel=0.02)


def test_rounds_that_an_operator_aborted_do_not_count():
    assert left(10, 4.0, (500.0, "stopped"), 4.0, 4.0, 4.0).expected_s == pytest.approx(
        10 * 4.75, rel=0.05
    )


def test_evaluations_between_rounds_count():
    """Ten more of training with nine evaluations between them, as the last one is done."""
    found = left(10, *[4.0, (6.0, "evaluate")] * 8)
    assert found.expected_s == pytest.approx(10 * 5.0 + 9 * 7.0, rel=0.1)


def test_a_run_that_only_evaluates_has_a_pace():
    assert left(5, *[(3.0, "evaluate")] * 6).expected_s == pytest.approx(20.0, rel=0.1)


def test_the_age_of_the_open_round_counts():
    """It is subtracted while it is usual; an overdue round makes all others look longer."""
    usual = left(2, *[9.0] * 6, (5.0, "open")).expected_s
    assert usual == pytest.approx(2 * 10.0 - 6.0, abs=0.5)
    overdue = left(2, *[9.0] * 6, (300.0, "open"))
    assert overdue.expected_s > 2 * usual
    assert overdue.range_s is not None


def test_trailing_abandoned_rounds_count_and_then_nobody_knows():
    """After three in a row there is no figure at all."""
    one = left(10, *[4.0] * 5, (60.0, "abandoned"))
    assert one.expected_s > 10 * 12
    assert left(10, *[4.0] * 5, *[(60.0, "abandoned")] * 3) is None


def test_nothing_is_said_before_the_first_commit():
    assert left(10) is None
    assert left(10, (60.0, "abandoned"), (5.0, "open")) is None


def test_few_rounds_give_a_range():
    """One round of 4 s says little about 99 more."""
    found = left(99, 4.0)
    low, high = found.range_s
    assert low == 0.0
    assert high > found.expected_s > 300


def test_widely_spread_rounds_give_a_range():
    assert left(5, 2.0, 30.0, 1.0, 55.0, 3.0, 41.0).range_s is not None


def test_a_run_that_is_done_has_no_time_left():
    found = left(0, 4.0, 4.0, 4.0)
    assert (found.expected_s, found.range_s) == (0.0, None)


def test_a_pause_between_rounds_does_not_count():
    """A night between two rounds says nothing about the next ones."""
    made, now = rounds(*[4.0] * 5)
    later, end = rounds(*[4.0] * 5, start_s=now + 30_000.0)
    assert time_left([*made, *later], 10, end).expected_s == pytest.approx(50.0, rel=0.05)


def test_a_long_wait_for_clients_leaves_no_time_left():
    """A short one is part of every cycle."""
    made, end = rounds(9, 9, 9, 9)
    assert time_left(made, 5, end + 9.0, selects=True) == time_left(made, 5, end + 9.0)
    assert time_left(made, 5, end + 11.0, selects=True) is None


def test_the_pace_needs_a_few_rounds():
    """One round in 0.26 s was 13,666 rounds per hour."""
    made, now = rounds(*[0.26] * (FEW - 1))
    assert rounds_an_hour(made, now) == 0.0
    made, now = rounds(*[9.0] * 10)
    assert rounds_an_hour(made, now) == pytest.approx(360.0, rel=0.02)


def test_the_range_holds_the_real_time_of_random_runs():
    """About two thirds of them, as one standard deviation should; the oracle plays the rest."""
    draw = np.random.default_rng(7)
    inside, errors = 0, []
    for _ in range(400):

        def play(committed):
            """Attempts until so many are committed; a third is abandoned after 20 s."""
            took = []
            while committed:
                fails = draw.random() < 1 / 3
                took.append((20.0, "abandoned") if fails else draw.gamma(4.0, 1.0))
                committed -= not fails
            return took

        past, future = play(10), play(20)
        found = left(20, *past[-30:])
        if found is None:
            continue
        real = sum(t[0] if isinstance(t, tuple) else t for t in future) + len(future)
        inside += found.low_s <= real <= found.high_s
        errors.append(found.expected_s / real)
    assert 0.55 < inside / len(errors) < 0.85
    assert np.mean(errors) == pytest.approx(1.0, abs=0.1)


def test_cycles_are_the_work_of_each_commit():
    """By hand: 4; 1 + 60 + 1 + 5; and the one that is open."""
    made, now = rounds(4.0, (60.0, "abandoned"), 5.0, (2.0, "open"))
    found = cycles(reversed(made), now)
    assert found.complete == (4.0, 67.0)
    assert (found.current, found.abandoned) == (3.0, 0)
