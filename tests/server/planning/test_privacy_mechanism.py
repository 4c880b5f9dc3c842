"""The privacy claim against the mechanism itself: the real draw of a round, and Gaussian noise.

The cohorts of real rounds are enumerated, with and without a client; the divergence of the two
noisy sums is computed without the accountant (`support.hockey_stick`), and must be within the
claim. Sums are in units of the clip; the other clients send what hides the client least.
"""

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest

from fedloom.protocol.trust.noise_stream import keyed
from fedloom.server.engine import Opened, Round, RoundKind, Wake
from fedloom.server.planning.spec import parse
from fedloom.strategies.privacy import Privacy
from fedloom.strategies.privacy.banded import factor
from fedloom.strategies.privacy.sampling import threshold, words
from support.hockey_stick import composed, delta, gaussian_delta
from support.noise_matrices import sensitivity_of_bands, sensitivity_of_trees

pytest.importorskip("dp_accounting")

DELTA = 1e-4
NAMES = ("ada", "bob", "cyd", "dan", "eve")
CLIENT = "cyd"
OTHERS = {
    "nothing": lambda place: 0.0,
    "opposite": lambda place: -1.0,
    "mixed": lambda place: (-1.0) ** place,
}
SOME_OTHERS = [
    name if name == "mixed" else pytest.param(name, marks=pytest.mark.long) for name in OTHERS
]
SECRET = keyed(bytes(range(32)))
PROBABILITIES = ((1, 10), (1, 4), (2, 5), (3, 4))
SOME_PROBABILITIES = [
    each if each == (2, 5) else pytest.param(each, marks=pytest.mark.long) for each in PROBABILITIES
]
NOISES = (0.6, 1.0, 2.0, 5.0)


@cache
def spec(goal, population, noise=1.0, rounds=1, sampling="poisson", **more):
    cohort = {"goal": goal, "candidates": 2} if sampling == "poisson" else {"goal": goal}
    return parse(
        {
            "rounds": rounds,
            "cohort": cohort,
            "train": {"epochs": 1, "learning_rate": 0.1},
            "privacy": {
                "clip": 1.0,
                "noise_multiplier": noise,
                "delta": DELTA,
                "sampling": sampling,
                "population": population,
                **more,
            },
        }
    )


def cohort(described, number, present):
    """The cohort of a real round with these clients."""
    select = described.select(number, RoundKind.TRAIN, None, SECRET)
    engine = Round(described.round_config(), select=select, now=0.0, available=present)
    opened, *_ = engine.handle(Wake(), 0.0)
    assert isinstance(opened, Opened)
    return frozenset(opened.cohort)


def claimed(described):
    """The epsilon that a run states after all its rounds."""
    return described.privacy_plan().claim()["epsilon"]


# ---- Poisson: every outcome of the coins -------------------------------------------------------


@cache
def witnesses(goal, population):
    """A round number for each combination of coins: those below the threshold draw."""
    below, found = threshold(goal, population), {}
    numbers = itertools.count(1)
    while len(found) < 2 ** len(NAMES):
        number = next(numbers)
        found.setdefault(tuple(word < below for word in words(SECRET, number, NAMES)), number)
    return found


def distribution(described, goal, population, present):
    """Cohort → probability, over all outcomes of the coins of independent clients."""
    q, found = threshold(goal, population) / 2**64, Counter()
    for coins, number in witnesses(goal, population).items():
        chance = math.prod(q if coin else 1 - q for coin in coins)
        found[cohort(described, number, present)] += chance
    assert math.isclose(sum(found.values()), 1)
    return found


def sums(cohorts, sent):
    """Sum of the updates → probability."""
    found = Counter()
    for members, chance in cohorts.items():
        found[sum(sent[name] for name in members)] += chance
    return found


@cache
def neighbours(goal, population):
    """Cohorts of all clients that are present, and without one of them."""
    described = spec(goal, population)
    without = [name for name in NAMES if name != CLIENT]
    return (
        distribution(described, goal, population, NAMES),
        distribution(described, goal, population, without),
    )


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("probability", SOME_PROBABILITIES)
@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.long), 4, pytest.param(30, marks=pytest.mark.long)]
)
def test_poisson_rounds_are_within_their_claim(probability, rounds, others):
    """With more and with fewer clients than the population, whatever the others send."""
    sent = {name: OTHERS[others](place) for place, name in enumerate(NAMES)} | {CLIENT: 1.0}
    with_, without = (sums(cohorts, sent) for cohorts in neighbours(*probability))
    for noise in NOISES:
        stated = claimed(spec(*probability, noise, rounds))
        found = delta(with_, without, noise, rounds, 1.01 * stated)
        assert found <= DELTA, (noise, stated, found)
        if others == "nothing":  # then nothing hides the client, and the claim is tight
            assert stated == 0 or delta(with_, without, noise, rounds, 0.98 * stated) > DELTA


@pytest.mark.long
@pytest.mark.parametrize(("goal", "population", "noise"), [(2, 10, 2.0), (20, 1000, 6.0)])
def test_a_draw_that_displaces_clients_would_not_be_within_the_claim(goal, population, noise):
    """A binomial number, then a uniform subset of all who are present: an added client displaces.

    The same computation accepts a coin for each client, and rejects this draw.
    """
    present, rounds = population, 100
    stated = claimed(spec(goal, population, noise, rounds))
    chances = binomial(population, goal / population)
    displaced = {-float(n): chance for n, chance in chances.items()}
    added = Counter()
    for n, chance in chances.items():
        share = n / (present + 1)
        added[-float(n)] += chance * (1 - share)
        added[2.0 - n] += chance * share
    assert delta(added, displaced, noise, rounds, stated) > 1.3 * DELTA
    q = goal / population
    coins = binomial(present, q)
    without = {-float(n): chance for n, chance in coins.items()}
    with_ = Counter({mean: chance * (1 - q) for mean, chance in without.items()})
    for mean, chance in without.items():
        with_[mean + 1] += chance * q
    assert delta(with_, without, noise, rounds, 1.01 * stated) <= DELTA


def binomial(n, q):
    """Number drawn → probability, but for improbable ones."""
    logs = {
        k: math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(q) + (n - k) * math.log1p(-q)
        for k in range(n + 1)
    }  # fmt: skip
    return {k: math.exp(log) for k, log in logs.items() if log > -45}


def test_coins_are_independent_and_have_the_claimed_probability():
    """Chi-squared over all combinations in 20,000 rounds; the limit is exceeded once in 10^6."""
    q, rounds = threshold(2, 5) / 2**64, 20_000
    assert q <= 2 / 5
    seen = Counter()
    for number in range(rounds):
        seen[tuple(word < threshold(2, 5) for word in words(SECRET, number, NAMES))] += 1
    wanted = {
        coins: rounds * math.prod(q if coin else 1 - q for coin in coins)
        for coins in itertools.product([True, False], repeat=len(NAMES))
    }
    assert sum((seen[c] - n) ** 2 / n for c, n in wanted.items()) < 77  # 31 degrees of freedom


# ---- without replacement -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("size", "goal"), [(4, 1), (5, 2), (5, 4)])
def test_subsets_of_one_size_are_equally_likely(size, goal):
    """Real draws in 1,500 rounds; the limit is exceeded once in 10^5."""
    described, rounds = spec(goal, size, sampling="without_replacement"), 1500
    seen = Counter(cohort(described, number, NAMES[:size]) for number in range(rounds))
    subsets = math.comb(size, goal)
    each = rounds / subsets
    limit = subsets - 1 + 7 * math.sqrt(2 * (subsets - 1)) + 8
    assert len(seen) == subsets
    assert sum((n - each) ** 2 / each for n in seen.values()) < limit


@pytest.mark.parametrize("others", SOME_OTHERS)
@pytest.mark.parametrize(
    ("size", "goal", "population"), [(10, 1, 10), (4, 1, 4), (20, 4, 16), (5, 4, 5)]
)
@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.long), 20])
def test_rounds_without_replacement_are_within_their_claim(size, goal, population, rounds, others):
    """A client's update is replaced; every subset of those present is equally likely."""
    values = [OTHERS[others](place) for place in range(size - 1)]
    pair = []
    for own in (1.0, -1.0):
        found = Counter()
        for members in itertools.combinations([*values, own], goal):
            found[sum(members)] += 1 / math.comb(size, goal)
        pair.append(found)
    for noise in (1.0, 2.0, 5.0):
        stated = claimed(spec(goal, population, noise, rounds, "without_replacement"))
        found = delta(*pair, noise, rounds, 1.01 * stated)
        assert found <= DELTA, (noise, stated, found)


# ---- masking sessions ---------------------------------------------------------------------------


def sums_of_shares(sigma, members):
    """Probabilities of a sum of rounded Gaussian shares, by convolution."""
    place = np.arange(-int(11 * sigma) - 1, int(11 * sigma) + 2)
    one = np.exp(-np.square(place / sigma) / 2)
    total = one = one / one.sum()
    for _ in range(members - 1):
        total = np.convolve(total, one)
    return total


@pytest.mark.parametrize(("members", "bits"), [(3, 16), (9, 16), (16, 16), (20, 24)])
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_sums_of_sessions_are_within_their_claim(members, bits, rounds, noise):
    """The sum of the shares of the fewest that are honest, in the steps of the run.

    One value, by as much as the clip moves it; the noise is a device's own sampler's.
    """
    masking = {"group": members, "min_group": members, "sum_bits": bits}
    table = {"mechanism": "distributed", "clip": 1.0, "noise_multiplier": noise, "delta": DELTA}
    described = parse(
        {
            "rounds": rounds,
            "cohort": {"goal": members},
            "train": {"epochs": 1, "learning_rate": 0.1},
            "privacy": table,
            "masking": masking,
        }
    )
    stated, exponent = claimed(described), min(described.exponent(), 8)
    t = 2 * members // 3 + 1
    honest = t - min(2 * t - members - 1, t - 2)
    share = described.session_noise().sampler(exponent, members, 1)
    total = sums_of_shares(share.sigma, honest)
    moved = 2**exponent  # of a value that is the clip, a whole number of steps
    found = shifted_delta(total, moved, rounds, stated)
    assert found <= DELTA, (stated, found)
    assert shifted_delta(total, moved, rounds, 0.8 * stated) > DELTA  # hardly more is claimed
    fewer = sums_of_shares(share.sigma, honest // 2)
    assert shifted_delta(fewer, moved, rounds, stated) > DELTA  # each share is needed


def shifted_delta(total, moved, rounds, epsilon):
    """δ(ε) between sums and the same ones moved by whole steps."""
    p, q = total[moved:], total[:-moved]
    kept = (p > 1e-290) & (q > 1e-290)
    return composed(p[kept], np.log(p[kept] / q[kept]), rounds, epsilon)


# ---- Gaussians without sampling ----------------------------------------------------------------


BANDS = ((16, 16, None), (3, 3, None), (5, 2, None), (4, 4, 2), (1, 1, 3))
"""Separation, bands and most participations."""


@cache
def bands_moved(rounds, **table):
    settings = Privacy(clip=1.0, noise_multiplier=1.0, delta=DELTA, **table)
    return sensitivity_of_bands(settings, factor(settings.num_bands, rounds), rounds)


@pytest.mark.long
@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 7, 16, 50])
def test_unsampled_mechanisms_are_within_their_claim(noise, rounds):
    """In every round; in a leaf of each tree; wherever the server lets it; with own noise."""
    tables = {
        "every round": ({}, math.sqrt(rounds)),
        "adaptive clip": ({"clip_quantile": 0.5}, math.sqrt(rounds)),
        "local": ({"mechanism": "local"}, 2 * math.sqrt(rounds)),
    }
    for every in (4, 7, 16):
        table = {"mechanism": "dp_ftrl", "restart_every": every}
        tables[f"trees of {every}"] = table, sensitivity_of_trees(rounds, every)
        limited = {**table, "participations": 2}
        tables[f"two trees of {every}"] = limited, sensitivity_of_trees(rounds, every, 2)
    for separation, bands, most in BANDS if rounds <= 16 else BANDS[:1]:
        table = {"mechanism": "dp_bandmf", "separation": separation, "bands": bands}
        table |= {} if most is None else {"participations": most}
        tables[f"{bands} bands, {separation} rounds, {most}"] = table, bands_moved(rounds, **table)
    for name, (table, sensitivity) in tables.items():
        values = {"max_abs": 2**20} if name == "local" else {}
        described = parse(
            {
                "rounds": rounds,
                "cohort": {"goal": 4},
                "train": {"epochs": 1, "learning_rate": 0.1},
                "privacy": {"clip": 1.0, "noise_multiplier": noise, "delta": DELTA, **table},
                **values,
            }
        )
        stated = claimed(described)
        assert gaussian_delta(1.0001 * stated, noise / sensitivity) <= DELTA, (name, stated)
        assert gaussian_delta(0.999 * stated, noise / sensitivity) > DELTA, (name, stated)
