"""When devices are told to come: bounds, the rate of a fleet, and meetings of a small one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.check_in_pace import LONGEST, MARGIN, CheckInRules, meetings, next_check_ins_s

RULES = CheckInRules(every_s=7200.0, hold_s=20.0)
DAY_S = 86400.0
EPOCH = 1_764_000_000.0

settings = st.tuples(st.floats(1.0, 1e6), st.floats(0.001, 0.5)).map(
    lambda pair: CheckInRules(every_s=pair[0], hold_s=pair[0] * pair[1])
)
unit = st.floats(0.0, 1.0, exclude_max=True)


def arrivals(population, number, rules, turns=8, seed=1):
    """Times since `EPOCH` at which a fleet comes that had all come at the same moment."""
    random = np.random.default_rng(seed)
    now, found = np.full(population, EPOCH), []
    for _ in range(turns):
        draws = random.random((2, population))
        now = now + next_check_ins_s(now, number, rules, *draws) + rules.hold_s
        found.append(now)
    return np.concatenate(found) - EPOCH


@pytest.mark.parametrize("hold_s", [0.0, 3601.0, float("nan")])
def test_a_wait_of_more_than_half_the_time_is_refused(hold_s):
    with pytest.raises(UsageError, match=r"check_in\.hold_s > 0, and at most half"):
        CheckInRules(every_s=7200.0, hold_s=hold_s)


@given(
    settings, st.integers(0, 10**7), st.integers(0, 10**5), st.tuples(unit, unit, st.floats(0, 4e9))
)
def test_a_device_comes_within_the_bounds(rules, population, wanted, draws_and_now):
    """Never after `LONGEST`, a missing device is later; a spread fleet not before half the time."""
    number = meetings(population, wanted, rules)
    first, second, now = draws_and_now
    draws = np.array([[first], [second]])
    [after] = next_check_ins_s(np.array([now]), number, rules, *draws)
    slack = 1e-6 * max(rules.every_s, now)  # of a sum with the seconds since the epoch
    least = -slack if number else rules.every_s / 2 - slack
    assert least <= after <= LONGEST * rules.every_s + slack
    if number:
        period_s = rules.every_s / number
        assert np.floor((now + after + slack) / period_s) > np.floor(now / period_s)
    assert rules.missing_after_s > LONGEST * rules.every_s


@given(settings, st.integers(0, 10**7), st.integers(1, 10**5))
def test_meetings_are_large_enough_and_apart(rules, population, wanted):
    """Each has what rounds want and a margin, if the fleet has; none begins before another ends."""
    number = meetings(population, wanted, rules)
    waiting = population * rules.hold_s / rules.every_s
    if not number:
        assert waiting >= MARGIN * wanted * (1 - 1e-9)
        return
    assert number & (number - 1) == 0
    assert number == 1 or population / number >= MARGIN * wanted
    assert rules.every_s / number > rules.hold_s
    # Twice the margin at most: no herd that rounds do not need.
    assert number == 1 or population / number < 4 * MARGIN * wanted or number * 2 > population


def test_without_a_round_that_waits_nobody_meets():
    assert meetings(1000, 0, RULES) == 0


def test_a_million_devices_come_evenly_spread():
    """140 a second, and in no minute of the last cycles more than chance explains.

    Of Poisson arrivals a minute with 8,310 has a standard deviation of 91.
    """
    assert meetings(10**6, 1000, RULES) == 0
    times = arrivals(10**6, 0, RULES)
    cycle_s = RULES.every_s + RULES.hold_s
    begin = 5 * cycle_s
    counts, _ = np.histogram(times, np.arange(begin, begin + 2 * cycle_s, 60.0))
    expected = 10**6 * 60.0 / cycle_s
    assert expected / 60.0 == pytest.approx(138.5, abs=0.1)
    # The fleet came at one moment, and after five cycles a trace of that is left: 4 in 100.
    assert abs(counts - expected).max() < 0.06 * expected + 5 * np.sqrt(expected)
    assert counts.mean() == pytest.approx(expected, rel=0.02)


def test_a_small_fleet_meets_at_common_times():
    """Whenever devices are told, they come to the same instants, within half of a wait.

    With 1,000 devices and rounds of 100 there are four meetings in two hours; each gets its share.
    """
    number = meetings(1000, 100, RULES)
    assert number == 4
    random = np.random.default_rng(2)
    now = EPOCH + random.random(1000) * RULES.every_s
    at = now + next_check_ins_s(now, number, RULES, *random.random((2, 1000)))
    period_s = RULES.every_s / number
    assert ((at % period_s) < RULES.hold_s / 2 + 1e-6).all()
    settled = arrivals(1000, number, RULES, turns=16)
    of = Counter(((settled + EPOCH) // period_s).astype(int).tolist())
    later = [of[k] for k in sorted(of)[12:-24]]  # the first and the last ones are not complete
    assert len(later) > 20
    assert np.mean(later) == pytest.approx(250, rel=0.05)
    assert min(later) > 1.5 * 100


@given(st.integers(0, 6), st.integers(0, 6), unit, unit)
def test_meetings_of_a_smaller_fleet_are_meetings_of_a_larger_one(few, more, first, second):
    """Nested periods: who was told before the fleet grew comes when others do."""
    few, more = sorted((few, more))
    draws = np.array([[first], [second]])
    [after] = next_check_ins_s(np.array([EPOCH]), 1 << few, RULES, *draws)
    finer_s = RULES.every_s / (1 << more)
    assert (EPOCH + after) % finer_s < RULES.hold_s / 2 + 1e-6


def test_the_whole_fleet_comes_to_the_only_meeting():
    """With fewer devices than rounds want and a margin, all come once in two hours, in ten s."""
    assert meetings(150, 100, RULES) == 1
    times = arrivals(150, 1, RULES, turns=3).reshape(3, 150)
    for turn in times:
        assert np.ptp(turn) < RULES.hold_s / 2
    assert np.diff(times.min(axis=1)) == pytest.approx(RULES.every_s, abs=RULES.hold_s)
