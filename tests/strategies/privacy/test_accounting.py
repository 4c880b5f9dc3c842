import math

import pytest

dp_accounting = pytest.importorskip("dp_accounting")

from dp_accounting import rdp  # noqa: E402

from fedloom.strategies.privacy import Releases, calibrate, epsilon  # noqa: E402
from fedloom.strategies.privacy.accounting import _rdp_of_round, affordable  # noqa: E402

NEIGHBOURS = dp_accounting.NeighboringRelation

MCMAHAN = Releases(noise_multiplier=1.0, sampling="poisson", cohort=5000, population=763_430)
ABADI = Releases(noise_multiplier=4.0, sampling="poisson", cohort=1, population=100)


def classical(releases, rounds, delta):
    """Epsilon by the moments accountant: the best rdp(α) + log(1/δ) / (α - 1), α whole."""
    orders, divergences = _rdp_of_round(releases)
    return min(
        rounds * r + math.log(1 / delta) / (a - 1)
        for a, r in zip(orders, divergences, strict=True)
        if a == int(a)
    )


def test_published_language_model():
    """McMahan et al. 2018, section 3: z = 1, 5,000 of 763,430 users, 5,000 rounds, δ = 1e-9: 4.634.

    Their conversion gives their figure; the later one of dp-accounting gives less.
    """
    assert classical(MCMAHAN, 5000, 1e-9) == pytest.approx(4.634, abs=0.001)
    accountant = rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(5000 / 763_430, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(event, 5000)
    assert epsilon(MCMAHAN, 5000, 1e-9) == pytest.approx(accountant.get_epsilon(1e-9), rel=1e-12)
    assert epsilon(MCMAHAN, 5000, 1e-9) < 4.634


def test_published_moments_accountant():
    """Abadi et al. 2016, section 3.1: q = 0.01, σ = 4, 10,000 steps, δ = 1e-5: 1.26."""
    assert classical(ABADI, 10_000, 1e-5) == pytest.approx(1.26, abs=0.005)
    assert epsilon(ABADI, 10_000, 1e-5) < 1.26


def test_no_sampling_is_one_gaussian():
    """T releases with noise z are one with z/√T: compared with Balle and Wang 2018's curve."""

    def delta(eps, sigma):
        def cdf(x):
            return math.erfc(-x / math.sqrt(2)) / 2

        return cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * cdf(-0.5 / sigma - eps * sigma)

    found = epsilon(Releases(noise_multiplier=10.0), 100, 1e-5)
    assert delta(found, 1.0) == pytest.approx(1e-5, rel=1e-6)
    assert found == dp_accounting.get_epsilon_gaussian(1.0, 1e-5)


def test_local_noise_is_half_as_good():
    """Any two updates are at most twice the clip apart."""
    local = Releases(noise_multiplier=10.0, local=True)
    assert epsilon(local, 7, 1e-5) == epsilon(Releases(noise_multiplier=5.0), 7, 1e-5)


def test_without_replacement_equals_dp_accounting():
    """Neighbours replace a client, so the noise over the sensitivity is half the multiplier."""
    releases = Releases(
        noise_multiplier=4.0, sampling="without_replacement", cohort=50, population=1000
    )
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, gaussian), 20)
    assert epsilon(releases, 20, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-12)


@pytest.mark.parametrize(("rounds", "trees"), [(8, [8]), (20, [8, 8, 4]), (3, [3])])
def test_trees_equal_dp_accounting(rounds, trees):
    """Complete trees and an incomplete one, each client once in each."""
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_SPECIAL)
    for steps in trees:
        accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(4.0, steps))
    found = epsilon(Releases(noise_multiplier=4.0, tree=8), rounds, 1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-12)


def test_a_tree_costs_its_height():
    """A leaf is in ⌊log2 n⌋ + 1 nodes: a tree of 8 costs what 4 Gaussian releases cost."""
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.GaussianDpEvent(4.0), 4)
    found = epsilon(Releases(noise_multiplier=4.0, tree=8), 8, 1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize(
    "releases",
    [
        Releases(noise_multiplier=1.0),
        Releases(noise_multiplier=1.0, sampling="poisson", cohort=20, population=1000),
        Releases(noise_multiplier=1.0, tree=16),
        Releases(noise_multiplier=1.0, local=True),
    ],
)
@pytest.mark.parametrize("target", [0.5, 8.0])
def test_calibrated_noise_reaches_the_target_and_no_more(releases, target):
    """Epsilon is at most the target, and 0.1 % less noise would exceed it."""
    noise = calibrate(releases, 64, 1e-5, target)
    kept = dict.fromkeys(releases.__slots__)
    kept = {name: getattr(releases, name) for name in kept}
    assert epsilon(Releases(**{**kept, "noise_multiplier": noise}), 64, 1e-5) <= target
    assert epsilon(Releases(**{**kept, "noise_multiplier": 0.999 * noise}), 64, 1e-5) > target


def test_budget_is_never_exceeded():
    """The affordable rounds are within the budget, and one more is not."""
    releases = Releases(noise_multiplier=4.0)
    rounds = affordable(releases, 1000, 1e-5, 3.0)
    assert epsilon(releases, rounds, 1e-5) <= 3.0 < epsilon(releases, rounds + 1, 1e-5)
    assert affordable(releases, 5, 1e-5, 3.0) == 5
    assert affordable(releases, 5, 1e-5, 0.1) == 0
    assert epsilon(releases, 0, 1e-5) == 0
