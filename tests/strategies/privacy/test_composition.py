"""Several runs over the same clients, against dp-accounting and the divergence itself."""

import itertools
from functools import cache

import numpy as np
import pytest

dp = pytest.importorskip("dp_accounting")

from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

from fedloom.strategies.privacy import (  # noqa: E402
    Privacy,
    Releases,
    Spending,
    common_relation,
    composed_epsilon,
    epsilon,
    fitting_rounds,
)
from support.hockey_stick import binned  # noqa: E402

DELTA = 1e-6


def plain(z, rounds):
    return Spending(releases=Releases(noise_multiplier=z), rounds=rounds)


def poisson(z, cohort, rounds, population=1000):
    return sampled("poisson", z, cohort, rounds, population)


def sampled(sampling, z, cohort, rounds, population):
    releases = Releases(noise_multiplier=z, sampling=sampling, cohort=cohort, population=population)
    return Spending(releases=releases, rounds=rounds)


def tree(z, length, rounds):
    return Spending(releases=Releases(noise_multiplier=z, tree=length), rounds=rounds)


def local(z, rounds):
    return Spending(releases=Releases(noise_multiplier=z, local=True), rounds=rounds)


def summed(z, rounds):
    """Of masking sessions: sums of discrete Gaussians."""
    return Spending(releases=Releases(noise_multiplier=z, summed=True), rounds=rounds)


def banded(z, rounds):
    """Four bands, a client in one of four rounds, of a run that wants ten."""
    return Spending.of(banded_settings(z), z, 1, rounds, wanted=10)


def banded_settings(z):
    return Privacy(mechanism="dp_bandmf", clip=1.0, noise_multiplier=z, delta=DELTA, separation=4)


CASES = {
    "two of one kind": (poisson(1, 10, 100), poisson(1, 10, 100)),
    "two that are sampled": (poisson(1, 10, 100), poisson(2, 50, 200)),
    "three": (poisson(1, 10, 100), poisson(2, 50, 200), plain(10, 20)),
    "rare and strong": (poisson(5, 1, 1000), plain(0.7, 1)),
    "Gaussians": (plain(10, 20), plain(5, 3)),
}


def as_event(spending):
    """The event in dp-accounting's own words."""
    releases = spending.releases
    one = dp.GaussianDpEvent(releases.noise_multiplier)
    if releases.sampling == "poisson":
        one = dp.PoissonSampledDpEvent(releases.cohort / releases.population, one)
    return dp.SelfComposedDpEvent(one, spending.rounds)


@pytest.mark.long
@pytest.mark.parametrize("runs", CASES.values(), ids=CASES)
def test_runs_compose_as_in_dp_accounting(runs):
    """The smaller figure of its two accountants, to a part in a thousand."""
    wanted = []
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    for own in (
        PLDAccountant(neighboring_relation=relation, value_discretization_interval=1e-3),
        RdpAccountant(neighboring_relation=relation),
    ):
        for run in runs:
            own.compose(as_event(run))
        wanted.append(float(own.get_epsilon(DELTA)))
    assert composed_epsilon(runs, DELTA) == pytest.approx(min(wanted), rel=1e-3)


@pytest.mark.parametrize("runs", CASES.values(), ids=CASES)
def test_a_composition_costs_more_than_a_part_and_less_than_the_sum(runs):
    """Adding up epsilons would be no bound at the same delta, and far too much."""
    parts = [epsilon(run.releases, run.rounds, DELTA) for run in runs]
    assert max(parts) < composed_epsilon(runs, DELTA) < sum(parts)


def test_one_run_has_its_own_claim():
    """Also where it was composed of nothing else, or of runs that released nothing."""
    every = poisson(1, 10, 1000), tree(6.0, 8, 30), local(4.0, 2), banded(3.0, 7), summed(4.0, 3)
    for run in every:
        own = epsilon(run.releases, run.rounds, DELTA)
        assert composed_epsilon([run], DELTA) == own
        assert composed_epsilon([run, plain(1, 0)], DELTA) == own
    assert composed_epsilon([], DELTA) == 0


@pytest.mark.parametrize("others", [(), (plain(10, 20),), (poisson(1, 10, 100), plain(5, 3))])
def test_sums_of_discrete_gaussians_compose_by_their_divergences(others):
    """As Gaussians do in dp-accounting's Rényi accountant; alone they add up to one longer run."""
    own = RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    own.compose(dp.GaussianDpEvent(6.0), 12)
    own.compose(dp.GaussianDpEvent(3.0), 2)
    for run in others:
        own.compose(as_event(run))
    runs = (summed(6.0, 12), summed(3.0, 2), *others)
    assert composed_epsilon(runs, DELTA) == pytest.approx(own.get_epsilon(DELTA), rel=1e-12)
    halves = composed_epsilon([summed(6.0, 5), summed(6.0, 7)], DELTA)
    assert halves == pytest.approx(epsilon(summed(6.0, 1).releases, 12, DELTA), rel=1e-12)


def test_equal_sampled_runs_are_one_longer_run_and_trees_are_not():
    """Two trees of 5 rounds each have 3 + 3 nodes over a client, a tree of 10 has 4."""
    halves = [poisson(1, 10, 500)] * 2
    assert composed_epsilon(halves, DELTA) == composed_epsilon([poisson(1, 10, 1000)], DELTA)
    trees = composed_epsilon([tree(6.0, 16, 5)] * 2, DELTA)
    assert trees == pytest.approx(dp.get_epsilon_gaussian(6.0 / np.sqrt(6), DELTA))


def test_a_banded_run_that_is_not_over_costs_the_columns_of_its_rounds():
    """With the matrix of all rounds that it wants, a whole one and one of two rows."""
    norms = [
        np.linalg.norm([1, 503316 / 2**20, 372454 / 2**20, 307895 / 2**20][:m]) for m in (4, 2)
    ]
    assert banded(3.0, 6).releases.factor.coefficients[1] == 503316
    alone = composed_epsilon([banded(3.0, 6)], DELTA)
    assert alone == pytest.approx(dp.get_epsilon_gaussian(3.0 / np.hypot(*norms), DELTA))
    noise = (np.hypot(*norms) ** 2 / 3.0**2 + 2 / 5.0**2) ** -0.5
    both = composed_epsilon([banded(3.0, 6), plain(5.0, 2)], DELTA)
    assert both == pytest.approx(dp.get_epsilon_gaussian(noise, DELTA))
    with pytest.raises(ValueError, match="rounds of a run with dp_bandmf"):
        Spending.of(banded_settings(3.0), 3.0, 1, 6)


# ---- the divergence of the mechanisms themselves -------------------------------------------------


def pair(spending):
    """Sums of a round with and without what the worst client sends: mixtures of Gaussians.

    Without replacement the others send the opposite, so that a drawn client moves a sum most.
    """
    releases = spending.releases
    q = releases.cohort / releases.population
    match releases.sampling:
        case "poisson":
            return {0.0: 1 - q, 1.0: q}, {0.0: 1.0}
        case "without_replacement":
            return {0.0: 1 - q, 2.0: q}, {0.0: 1 - q, 1.0: q}
    return {1.0: 1.0}, {0.0: 1.0}


SIZE, STEP = 1 << 15, 2**-8


def shares(z, members=6, sigma=4.0):
    """Probabilities of a sum of six discrete Gaussians of four steps, and of it moved by a client.

    The client moves it by whole steps, rounded down to at most what the noise multiplier is for.
    """
    place = np.arange(-60, 61)
    one = np.exp(-np.square(place / sigma) / 2)
    total = one = one / one.sum()
    for _ in range(members - 1):
        total = np.convolve(total, one)
    moved = int(sigma * np.sqrt(members) / z)
    return np.append(np.zeros(moved), total), np.append(total, np.zeros(moved))


@cache
def losses(spending, direction):
    """The Fourier transform of the privacy losses of a run's rounds, rounded down to a grid."""
    releases = spending.releases
    z = releases.noise_multiplier
    masses = shares(z) if releases.summed else binned(*pair(spending), z)
    p, q = masses[::direction]
    kept = (p > 1e-300) & (q > 1e-300)
    places = np.floor(np.log(p[kept] / q[kept]) / STEP).astype(int)
    pmf = np.bincount(places % SIZE, weights=p[kept], minlength=SIZE)
    return np.fft.rfft(pmf) ** spending.rounds


def divergence(runs, epsilon):
    """δ(ε) of all releases of all runs together: at most the true one."""
    place = np.arange(SIZE)
    place[place >= SIZE // 2] -= SIZE
    short = -np.expm1(np.minimum(epsilon - place * STEP, 0.0))
    found = [
        np.fft.irfft(np.prod([losses(run, direction) for run in runs], axis=0), SIZE)
        for direction in (1, -1)
    ]
    return max(float(pmf @ short) for pmf in found)


SMALL = [
    plain(3.0, 2),
    tree(4.0, 4, 1),
    poisson(1.0, 1, 4, population=4),
    sampled("without_replacement", 4.0, 1, 3, 4),
    local(6.0, 1),
    summed(3.0, 2),
]


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])
def test_no_composition_is_below_the_divergence_of_its_mechanisms(count):
    """Every choice of two and of three mechanisms, under zero-out."""
    for runs in itertools.combinations_with_replacement(SMALL, count):
        claimed = composed_epsilon(runs, 1e-4)
        assert divergence(runs, claimed) <= 1e-4, runs


def test_the_divergence_is_not_far_below_the_claim():
    """So that the oracle would see a composition that leaves one run out."""
    for runs in itertools.combinations(SMALL[:3], 2):
        claimed = composed_epsilon(runs, 1e-4)
        assert divergence(runs, 0.96 * claimed) > 1e-4
        assert divergence(runs, composed_epsilon(runs[:1], 1e-4)) > 1e-4


# ---- relations, and what fits --------------------------------------------------------------------


def test_different_claims_compose_under_zero_out_alone():
    """Runs that claim one relation keep it; a run that released nothing has no say."""
    replaced = sampled("without_replacement", 4.0, 1, 3, 4)
    assert common_relation([poisson(1, 10, 5), poisson(2, 1, 5)]) == "add-or-remove"
    assert common_relation([replaced, local(2.0, 1)]) == "replace"
    assert common_relation([replaced, poisson(1, 10, 5)]) == "zero-out"
    assert common_relation([poisson(1, 10, 5), plain(1, 0)]) == "add-or-remove"


def test_the_rounds_that_fit_are_the_most_that_do():
    """Found by bisection; 0 where none fits."""
    before = poisson(1, 10, 500)

    def fits(rounds):
        return composed_epsilon([before, plain(10, rounds)], DELTA) <= 2.5

    found = fitting_rounds(fits, 100)
    assert 0 < found < 100
    assert fits(found)
    assert not fits(found + 1)
    assert fitting_rounds(lambda rounds: rounds == 0, 100) == 0
