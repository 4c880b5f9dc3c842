"""A fleet that checks in, on the virtual clock: its rate, its rounds, and what an outage does."""

import numpy as np
import pytest

from fedloom.server.check_in_pace import MARGIN, CheckInRules
from fedloom.server.engine import RoundConfig, uniform
from fedloom.simulation.clock.check_in_fleet import CheckInFleet
from fedloom.simulation.data.population import numbered

RULES = CheckInRules(every_s=7200.0, hold_s=20.0)
HOUR_S = 3600.0


def select(number):
    return uniform(3, number)


def test_devices_come_at_the_rate_on_paper():
    """Each once in `every_s` and a wait; no minute is off by more than 5 % and five deviations."""
    fleet = CheckInFleet(numbered(100_000), RULES, spread_s=RULES.every_s)
    fleet.play(12 * HOUR_S)
    settled = fleet.per_minute[360:]
    expected = 100_000 * 60 / (RULES.every_s + RULES.hold_s)
    assert settled.mean() == pytest.approx(expected, rel=0.01)
    assert abs(settled - expected).max() < 0.05 * expected + 5 * np.sqrt(expected)


def test_rounds_of_a_large_fleet_open_within_a_moment():
    """They draw from all that wait, a thousand of 2,778, and few devices are drawn twice."""
    fleet = CheckInFleet(numbered(200_000), RULES, spread_s=RULES.every_s)
    fleet.play(HOUR_S, RoundConfig(goal=100), select)
    later = fleet.draws[2:]
    assert len(later) > 50
    assert max(draw.opened_s - draw.wanted_s for draw in later) < 1.0
    waiting = 200_000 * RULES.hold_s / RULES.every_s
    assert np.mean([draw.waiting for draw in later]) == pytest.approx(waiting, rel=0.05)
    for draw in fleet.draws:
        assert len(set(draw.cohort)) == 100


def test_a_small_fleet_meets_and_every_meeting_opens_a_round():
    """500 devices and rounds of 100: two meetings in two hours, an hour apart."""
    fleet = CheckInFleet(numbered(500), RULES, spread_s=RULES.every_s)
    fleet.play(24 * HOUR_S, RoundConfig(goal=100), select)
    draws = [draw for draw in fleet.draws if draw.opened_s > 4 * HOUR_S]
    assert len(draws) in (19, 20)
    assert np.diff([draw.opened_s for draw in draws]) == pytest.approx(HOUR_S, abs=30.0)
    assert np.mean([draw.waiting for draw in draws]) == pytest.approx(250, rel=0.1)
    assert min(draw.waiting for draw in draws) >= 0.75 * MARGIN * 100
    asked = {name for draw in draws for name in draw.cohort}
    assert len(asked) > 490


def test_whom_a_round_draws_does_not_depend_on_who_came_first():
    """The chance to be drawn of those that came first and last at a meeting is the same.

    3,000 draws of a half: the standard deviation of a share is 0.9 %.
    """
    rules = CheckInRules(every_s=600.0, hold_s=20.0)
    fleet = CheckInFleet(numbered(200), rules)
    shares, due = [], None
    first = np.zeros(200, bool)
    while len(fleet.draws) < 60:
        due = fleet._due.copy()
        opened = len(fleet.draws)
        fleet.play(fleet.now + rules.hold_s, RoundConfig(goal=100), select)
        for draw in fleet.draws[opened:]:
            waits = np.argsort(due)[: draw.waiting]
            first[:] = False
            first[waits[: len(waits) // 2]] = True
            drawn = [int(name.removeprefix("client-")) for name in draw.cohort]
            shares.append(first[drawn].mean())
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)


def test_after_an_outage_the_fleet_returns_at_twice_its_rate_at_most():
    """Ten hours without a server: full jitter over what each device was told."""
    down, up = 4 * HOUR_S, 14 * HOUR_S
    fleet = CheckInFleet(numbered(100_000), RULES, spread_s=RULES.every_s, outage_s=(down, up))
    fleet.play(24 * HOUR_S)
    rate = fleet.per_minute
    usual = 100_000 * 60 / RULES.every_s
    assert rate[int(down // 60) : int(up // 60)].sum() == 0
    back = rate[int(up // 60) :]
    assert back.max() < 2.2 * usual
    assert back[:120].sum() > 90_000, "within two hours almost all have been there"
    assert fleet.failed > 500_000


def test_the_same_seed_gives_the_same_fleet():
    played = []
    for _ in range(2):
        fleet = CheckInFleet(numbered(2_000), RULES, seed=5)
        fleet.play(9 * HOUR_S, RoundConfig(goal=50), select)
        played.append(fleet.draws)
    assert played[0] == played[1]
    assert played[0]
