"""Selection policies: common invariants, and the probabilities of each in closed form."""

import dataclasses
import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import SELECTIONS, registry
from fedloom.strategies.selection import (
    Deadline,
    Known,
    Occasion,
    Oort,
    PowerOfChoice,
    Sticky,
    Stratified,
)
from fedloom.strategies.selection.base import settings_of
from fedloom.strategies.selection.oort import _ln
from fedloom.strategies.selection.stratified import _equal

NEEDED = {"stratified": {"label": "region"}}
POLICIES = [registry.selection(name, NEEDED.get(name)) for name in SELECTIONS] + [
    Stratified(patterns=["client-0*", "*3"], allocation="equal"),
    Oort(max_rounds=2, exploration=0.0, exploration_min=0.0),
    Deadline(retry_rounds=2),
]


def known_of(count, **facts):
    """Knowledge about this many clients; values that are not given are unknown."""
    nothing = Known.nothing(count)
    given = {name: np.array(values) for name, values in facts.items() if name != "latest_round"}
    if "rounds" not in given and "num_examples" in given:
        given["rounds"] = given["last_round"] = np.ones(count, np.int64)
    known = dataclasses.replace(nothing, **given)
    return dataclasses.replace(known, latest_round=int(known.last_round.max(initial=0)))


def occasion(known, *, seed=0, round_number=1, deadline_s=60.0):
    count = len(known.loss)
    names = [f"client-{number:02}" for number in range(count)]
    return Occasion(names=names, known=known, seed=seed, round=round_number, deadline_s=deadline_s)


@st.composite
def occasions(draw):
    count = draw(st.integers(0, 25))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    numbers = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 0.5, 2.0, 1e300])
    rounds = np.array(column(st.integers(0, 4)), np.int64)
    known = known_of(
        count,
        num_examples=np.where(rounds > 0, np.array(column(st.integers(0, 100)), np.int64), 0),
        loss=np.array(column(numbers), float),
        seconds=np.array(column(st.sampled_from([math.nan, 0.0, 1.0, 54.0, 90.0])), float),
        label=np.array(column(st.sampled_from([math.nan, 0.0, 1.0])), float),
        rounds=rounds,
        last_round=rounds * 2,
    )
    return occasion(
        known, seed=draw(st.integers(-(2**70), 2**70)), round_number=draw(st.integers(1, 2**31))
    )


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@given(occasions(), st.data())
def test_a_draw_is_of_different_candidates(policy, when, data):
    """The requested number, no duplicates, and the same each time, for any history."""
    count = data.draw(st.integers(0, len(when)))
    drawn = policy.choose(when, count).tolist()
    assert len(set(drawn)) == len(drawn) == count
    assert set(drawn) <= set(range(len(when)))
    assert policy.choose(when, count).tolist() == drawn


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_policy_is_frozen_and_its_settings_rebuild_it(policy):
    assert registry.selection(policy.name, settings_of(policy)) == policy
    for field in dataclasses.fields(policy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, field.name, 0)


FOR_EVER = {
    "uniform": [11, 9, 10, 6],
    "size": [10, 9, 11, 7],
    "power_of_choice": [10, 4, 8, 5],
    "oort": [4, 5, 0, 8],
    "deadline": [2, 1, 0, 3],
    "sticky": [8, 11, 3, 7],
    "stratified": [4, 6, 2, 10],
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_draw_does_not_change_between_versions(name):
    """The same history gives this cohort on every machine and with every NumPy."""
    number = np.arange(12)
    known = known_of(
        12,
        num_examples=10 + number**2,
        loss=1 / (1 + number % 5),
        seconds=10.0 * number,
        label=number % 3 * 1.0,
        rounds=number % 4,
        last_round=np.where(number % 4, number, 0),
    )
    drawn = registry.selection(name, NEEDED.get(name)).choose(
        occasion(known, seed=2026, round_number=13), 4
    )
    assert drawn.tolist() == FOR_EVER[name]


def inclusions(policy, known, count, rounds=1500, **when):
    """How often each candidate was drawn in this many rounds."""
    seen = Counter()
    for number in range(1, rounds + 1):
        drawn = policy.choose(occasion(known, **{"round_number": number} | when), count)
        seen.update(drawn.tolist())
    return seen


def assert_chances(seen, chances, rounds=1500):
    """Every count is within five standard deviations of its expectation."""
    for place, chance in enumerate(chances):
        deviation = (rounds * chance * (1 - chance)) ** 0.5
        assert abs(seen[place] - rounds * chance) <= 5 * deviation + 1e-9, (place, seen[place])


# ---- power-of-choice -----------------------------------------------------------------------------


def test_power_of_choice_has_its_chances_in_closed_form():
    """One place, two candidates drawn by size: the larger loss of every pair, summed."""
    size, loss = np.array([1, 2, 3, 10]), np.array([4.0, 1.0, 3.0, 2.0])
    chances = np.zeros(4)
    for a, b in permutations(range(4), 2):
        chance = size[a] / 16 * size[b] / (16 - size[a])
        chances[a if loss[a] > loss[b] else b] += chance
    seen = inclusions(PowerOfChoice(choices=2), known_of(4, num_examples=size, loss=loss), 1)
    assert_chances(seen, chances)
    assert chances[1] == 0


def test_power_of_choice_with_one_choice_draws_by_size():
    """D = m is a draw by data share, as in the paper."""
    known = known_of(3, num_examples=np.array([1, 3, 6]), loss=np.array([9.0, 2.0, 1.0]))
    assert_chances(inclusions(PowerOfChoice(choices=1), known, 1), [0.1, 0.3, 0.6])


def test_power_of_choice_tries_new_clients_first_and_nan_losses_last():
    """An infinite loss does not win every round."""
    known = known_of(
        5,
        num_examples=np.array([9, 9, 9, 0, 9]),
        loss=np.array([math.inf, 1.0, math.nan, math.nan, 2.0]),
        rounds=np.array([1, 1, 1, 0, 1]),
    )
    policy = PowerOfChoice(choices=5)
    assert policy.choose(occasion(known), 1).tolist() == [3]
    assert set(policy.choose(occasion(known), 3).tolist()) == {3, 4, 1}


# ---- Oort ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_oort_exploits_by_utility_above_the_cutoff():
    """One place: clients within the cut-off of the best, in proportion to utility."""
    loss = np.array([1.0, 0.98, 0.5, 0.97])
    known = known_of(4, num_examples=np.full(4, 100), loss=loss)
    known = dataclasses.replace(known, rounds=np.ones(4, np.int64), last_round=np.ones(4, np.int64))
    policy = Oort(exploration=0.0, exploration_min=0.0, cutoff=0.9)
    seen = inclusions(policy, known, 1, round_number=1, rounds=1)
    assert sum(seen.values()) == 1
    counts = Counter()
    for seed in range(1500):
        counts.update(policy.choose(occasion(known, seed=seed), 1).tolist())
    above = np.where(loss >= 0.9, loss, 0.0)
    assert_chances(counts, above / above.sum())


def test_oort_utilities_are_those_of_the_formula():
    """By hand: four clients, of which one is slow, one long not asked and one new."""
    known = known_of(
        4,
        num_examples=np.array([100, 50, 10, 0]),
        loss=np.array([2.0, 1.0, 3.0, math.nan]),
        seconds=np.array([10.0, 40.0, 20.0, math.nan]),
        rounds=np.array([1, 1, 1, 0]),
        last_round=np.array([9, 9, 1, 0]),
    )
    found = Oort(preferred_s=20.0, penalty=2).utilities(known, 10)
    recent, long_ago = math.sqrt(0.1 * math.log(10) / 9), math.sqrt(0.1 * math.log(10))
    wanted = [1 + recent, (0.25 + recent) * 0.25, 0.15 + long_ago]
    np.testing.assert_allclose(found[:3], wanted, rtol=1e-14)
    even = Oort(penalty=0).utilities(known, 10)
    assert even[1] == pytest.approx(0.25 + recent)
    by_median = Oort(penalty=1).utilities(known, 10)  # of 10, 20 and 40 s
    assert by_median[1] == pytest.approx((0.25 + recent) / 2)


def test_oort_explores_less_and_less():
    """0.9, decreasing by a factor of 0.98 a round to 0.2; that share is for untried clients."""
    policy = Oort()
    assert policy.exploration_at(1) == 0.9
    assert policy.exploration_at(11) == pytest.approx(0.9 * 0.98**10)
    assert policy.exploration_at(10**9) == 0.2
    rounds = np.repeat([1, 0], 20)
    known = known_of(
        40, num_examples=rounds * 5, loss=np.where(rounds, 1.0, math.nan), rounds=rounds
    )
    for number, wanted in ((1, 9), (11, 7), (500, 2)):
        drawn = policy.choose(occasion(known, round_number=number), 10)
        assert int((drawn >= 20).sum()) == wanted


def test_oort_asks_clients_past_max_rounds_last():
    known = known_of(
        6, num_examples=np.full(6, 10), loss=np.full(6, 1.0), rounds=np.array([3, 3, 3, 1, 1, 0])
    )
    policy = Oort(max_rounds=3)
    assert set(policy.choose(occasion(known), 3).tolist()) == {3, 4, 5}
    assert len(policy.choose(occasion(known), 5)) == 5


@given(st.integers(1, 2**40))
def test_the_logarithm_is_accurate(value):
    """To 1e-14, by operations that round equally on every machine."""
    assert _ln(value) == pytest.approx(math.log(value), rel=1e-14, abs=1e-15)


# ---- the others ----------------------------------------------------------------------------------


def test_the_deadline_policy_excludes_slow_clients():
    """Uniform among clients that fit and unmeasured ones; then the fastest of the slow."""
    seconds = np.array([10.0, 54.0, 55.0, math.nan, 200.0])
    known = known_of(5, num_examples=np.full(5, 1), seconds=seconds)
    assert_chances(inclusions(Deadline(share=0.9), known, 1), [1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert Deadline(share=0.9).choose(occasion(known), 5).tolist()[3:] == [2, 4]


def test_the_deadline_policy_retries_slow_clients():
    """Some rounds after they last took part."""
    known = known_of(
        2, num_examples=np.full(2, 1), seconds=np.array([10.0, 90.0]), last_round=np.array([4, 4])
    )
    policy = Deadline(retry_rounds=3)
    seen = [inclusions(policy, known, 1, rounds=40, round_number=n)[1] for n in (5, 6, 8)]
    assert seen == [0, 0, 0]
    counts = Counter()
    for seed in range(200):
        drawn = policy.choose(occasion(known, seed=seed, round_number=7), 1)
        counts.update(drawn.tolist())
    assert 60 < counts[1] < 140


def test_sticky_keeps_its_share():
    """Of 4 places 3 go to the last round's five clients, the rest to the other five."""
    last = np.array([7, 7, 7, 7, 7, 0, 0, 3, 3, 3])
    known = known_of(10, rounds=(last > 0).astype(np.int64), last_round=last)
    policy = Sticky(share=0.75)
    assert_chances(inclusions(policy, known, 4), [3 / 5] * 5 + [1 / 5] * 5)
    first = known_of(10)
    assert_chances(inclusions(policy, first, 4), [0.4] * 10)
    assert len(policy.choose(occasion(known), 10)) == 10


@pytest.mark.long
@pytest.mark.parametrize("allocation", ["proportional", "equal"])
def test_strata_get_their_share_of_the_places(allocation):
    """A client's probability is exact, and each stratum's places differ by less than one."""
    label = np.array([0.0] * 7 + [1.0] * 2 + [math.nan] * 1)
    known = known_of(10, label=label)
    policy = Stratified(label="region", allocation=allocation)
    places = 4
    if allocation == "proportional":
        chances = [places / 10] * 10
        seats = {0: (2, 3), 1: (0, 1), 2: (0, 1)}
    else:
        # Four places for three strata, of which one holds a single client.
        chances = [1.5 / 7] * 7 + [1.5 / 2] * 2 + [1.0]
        seats = {0: (1, 2), 1: (1, 2), 2: (1, 1)}
    assert_chances(inclusions(policy, known, places), chances)
    strata = np.array([0] * 7 + [1] * 2 + [2])
    for number in range(200):
        drawn = strata[policy.choose(occasion(known, round_number=number), places)]
        for stratum, (low, high) in seats.items():
            assert low <= int((drawn == stratum).sum()) <= high


def test_equal_shares_fill_up_small_strata():
    """Places that a small stratum cannot fill go to the others equally."""
    assert [float(x) for x in _equal(np.array([1, 10, 10]), 9)] == [1.0, 4.0, 4.0]
    assert [float(x) for x in _equal(np.array([1, 2, 0]), 9)] == [1.0, 2.0, 0.0]


def test_strata_can_be_name_patterns():
    """The first match decides."""
    names = ["de-1", "de-2", "fr-1", "fr-2", "uk-1", "uk-2"]
    policy = Stratified(patterns=["de-*", "*-1"], allocation="equal")
    when = Occasion(names=names, known=Known.nothing(6), seed=1, round=1)
    drawn = [names[place] for place in policy.choose(when, 3)]
    assert sum(name.startswith("de") for name in drawn) == 1
    assert sum(name in ("fr-1", "uk-1") for name in drawn) == 1


BAD = [
    ("power_of_choise", {}, ValueError, "Did you mean 'power_of_choice'"),
    ("power_of_choice", {"choices": 0.5}, ValueError, "choices >= 1"),
    ("power_of_choice", {"d": 5}, ValueError, "Known: choices, loss"),
    ("oort", {"exploration": 1.5}, ValueError, "exploration from 0 to 1"),
    ("oort", {"exploration_decay": 0}, ValueError, "exploration_decay > 0"),
    ("oort", {"penalty": 0.5}, TypeError, "penalty of oort as a whole number"),
    ("oort", {"preferred_s": 0}, ValueError, "preferred_s > 0"),
    ("deadline", {"share": 0}, ValueError, "share > 0"),
    ("sticky", {"share": "half"}, TypeError, "share of sticky as a number"),
    ("stratified", {}, ValueError, "Expected either patterns or label"),
    ("stratified", {"label": "x", "patterns": ["a"]}, ValueError, "either patterns or label"),
    ("stratified", {"patterns": "eu-*"}, TypeError, "patterns of stratified as a list of texts"),
    ("stratified", {"label": "x", "allocation": "fair"}, ValueError, "allocation of"),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), BAD)
def test_an_invalid_policy_is_refused(name, settings, error, message):
    with pytest.raises(error, match=message):
        registry.selection(name, settings)
