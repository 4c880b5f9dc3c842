import math

import numpy as np
import pytest

dp_accounting = pytest.importorskip("dp_accounting")

from dp_accounting import pld, rdp  # noqa: E402

from fedloom.strategies.privacy import Releases, calibrate, epsilon  # noqa: E402
from fedloom.strategies.privacy.accounting import affordable, rdp_of_round  # noqa: E402
from fedloom.strategies.privacy.banded import factor  # noqa: E402
from support.hockey_stick import binned, composed  # noqa: E402

NEIGHBOURS = dp_accounting.NeighboringRelation

MCMAHAN = Releases(noise_multiplier=1.0, sampling="poisson", cohort=5000, population=763_430)
ABADI = Releases(noise_multiplier=4.0, sampling="poisson", cohort=1, population=100)


def classical(releases, rounds, delta):
    """Epsilon by the moments accountant: the best rdp(α) + log(1/δ) / (α - 1), α whole."""
    orders, divergences = rdp_of_round(releases)
    return min(
        rounds * r + math.log(1 / delta) / (a - 1)
        for a, r in zip(orders, divergences, strict=True)
        if a == int(a)
    )


@pytest.mark.long
def test_published_language_model():
    """McMahan et al. 2018, section 3: z = 1, 5,000 of 763,430 users, 5,000 rounds, δ = 1e-9: 4.634.

    Their conversion gives their figure; the later one of dp-accounting and its loss distributions
    give less.
    """
    assert classical(MCMAHAN, 5000, 1e-9) == pytest.approx(4.634, abs=0.001)
    event = dp_accounting.PoissonSampledDpEvent(5000 / 763_430, dp_accounting.GaussianDpEvent(1.0))
    found = epsilon(MCMAHAN, 5000, 1e-9)
    assert found < accounted(rdp.RdpAccountant(), event, 5000, 1e-9) < 4.634
    assert found == pytest.approx(accounted(pld.PLDAccountant(), event, 5000, 1e-9), rel=1e-3)


def accounted(accountant, event, rounds, delta):
    accountant.compose(event, rounds)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("cohort", "noise", "renyi", "distributed"),
    [
        (10, 1.0, 2.4367, 2.1245),
        pytest.param(1, 1.0, 0.8697, 0.1856, marks=pytest.mark.long),
        pytest.param(250, 2.0, None, None, marks=pytest.mark.long),
    ],
)
def test_the_smaller_of_two_bounds_is_claimed(cohort, noise, renyi, distributed):
    """Of dp-accounting's accountants, with q = cohort / 1000, 1,000 rounds, δ = 1e-6."""
    releases = Releases(noise_multiplier=noise, sampling="poisson", cohort=cohort, population=1000)
    event = dp_accounting.PoissonSampledDpEvent(cohort / 1000, dp_accounting.GaussianDpEvent(noise))
    by_renyi = accounted(rdp.RdpAccountant(), event, 1000, 1e-6)
    by_loss = accounted(pld.PLDAccountant(), event, 1000, 1e-6)
    if renyi is not None:
        assert (round(by_renyi, 4), round(by_loss, 4)) == (renyi, distributed)
    found = epsilon(releases, 1000, 1e-6)
    assert found <= by_renyi
    assert by_loss * (1 - 1e-6) <= found <= by_loss * 1.001


@pytest.mark.long
def test_epsilon_never_decreases_from_round_to_round():
    """The grid of losses does not depend on the number of rounds."""
    releases = Releases(noise_multiplier=1.0, sampling="poisson", cohort=20, population=1000)
    found = [epsilon(releases, rounds, 1e-5) for rounds in (*range(1, 40), *range(400, 405))]
    assert found == sorted(found)


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


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (4.0, 50), (20.0, 3), (0.7, 9)])
def test_sums_of_discrete_gaussians_cost_their_concentrated_privacy(z, rounds):
    """ρ = T / 2z², converted at its best order (Canonne et al. 2020, Corollary 13), in numpy.

    That is more than an exact Gaussian costs, and less than the conversion of Bun and Steinke 2016.
    """
    found = epsilon(Releases(noise_multiplier=z, summed=True), rounds, 1e-5)
    rho = rounds / (2 * z**2)
    alpha = 1 + np.geomspace(1e-2, 1e4, 200_000)
    terms = rho * alpha + (math.log(1e5) + (alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha)) / (
        alpha - 1
    )
    best = float(terms.min())
    assert best * (1 - 1e-9) <= found <= best * 1.02
    assert epsilon(Releases(noise_multiplier=z), rounds, 1e-5) < found
    assert found < rho + 2 * math.sqrt(rho * math.log(1e5))


def test_local_noise_is_half_as_good():
    """Any two updates are at most twice the clip apart."""
    local = Releases(noise_multiplier=10.0, local=True)
    assert epsilon(local, 7, 1e-5) == epsilon(Releases(noise_multiplier=5.0), 7, 1e-5)


@pytest.mark.long
def test_without_replacement_is_within_the_renyi_bound():
    """Neighbours replace a client, so the noise over the sensitivity is half the multiplier.

    q = 0.01, noise over sensitivity 1, 1,000 rounds, δ = 1e-6: 4.0212 by Rényi divergences. The
    claim is not below the cost of adding or removing a client with as much noise.
    """
    releases = Releases(
        noise_multiplier=2.0, sampling="without_replacement", cohort=10, population=1000
    )
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, gaussian)
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_ONE)
    by_renyi = accounted(accountant, event, 1000, 1e-6)
    assert round(by_renyi, 4) == 4.0212
    one_way = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    least = accounted(pld.PLDAccountant(), one_way, 1000, 1e-6)
    assert least < epsilon(releases, 1000, 1e-6) < by_renyi


@pytest.mark.long
@pytest.mark.parametrize("q", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("noise", [0.8, 2.0])
@pytest.mark.parametrize("rounds", [1, 5, 50])
def test_without_replacement_composes_the_pair_that_dominates_both_directions(q, noise, rounds):
    """In numpy: losses above 0 of one direction, below 0 of the other, and the rest at 0."""
    from fedloom.strategies.privacy import loss_distributions

    delta = 1e-5
    found = loss_distributions.epsilon(noise, q, rounds, delta, replaced=True)
    drawn, not_drawn = binned({0.0: 1 - q, 1.0: q}, {0.0: 1.0}, noise)
    ahead, back = losses(drawn, not_drawn), losses(not_drawn, drawn)
    p = np.concatenate([drawn[ahead > 0], not_drawn[back < 0]])
    loss = np.concatenate([ahead[ahead > 0], back[back < 0]])
    p, loss = np.append(p, 1 - p.sum()), np.append(loss, 0.0)
    assert p[-1] >= -1e-12
    assert composed(p, loss, rounds, 1.005 * found) <= delta
    assert composed(p, loss, rounds, 0.99 * found) > delta


def losses(p, q):
    return np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300))


@pytest.mark.parametrize(("rounds", "trees"), [(8, [8]), (20, [8, 8, 4]), (3, [3])])
def test_trees_cost_the_gaussians_of_their_leaves(rounds, trees):
    """Complete trees and an incomplete one: a leaf of a tree of n is in ⌊log2 n⌋ + 1 nodes.

    Exactly, where dp-accounting has the Rényi bound of the same event.
    """
    accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBOURS.REPLACE_SPECIAL)
    for steps in trees:
        accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(4.0, steps))
    found = epsilon(Releases(noise_multiplier=4.0, tree=8), rounds, 1e-5)
    nodes = sum(math.floor(math.log2(steps)) + 1 for steps in trees)
    assert found == dp_accounting.get_epsilon_gaussian(4.0 / math.sqrt(nodes), 1e-5)
    assert 0.8 * accountant.get_epsilon(1e-5) < found < accountant.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("rounds", "most", "nodes"), [(20, 2, 8), (20, 1, 4), (20, 3, 11), (3, 1, 2)]
)
def test_a_limit_of_participations_costs_the_dearest_trees(rounds, most, nodes):
    """Trees of 8: two of 4 nodes a leaf, then a part of 4 rounds with 3."""
    found = epsilon(Releases(noise_multiplier=4.0, tree=8, participations=most), rounds, 1e-5)
    assert found == dp_accounting.get_epsilon_gaussian(4.0 / math.sqrt(nodes), 1e-5)


@pytest.mark.parametrize(("most", "blocks"), [(None, [4, 4, 2]), (2, [4, 4]), (1, [4])])
def test_a_banded_matrix_costs_the_gaussians_of_its_columns(most, blocks):
    """One release for each participation, of a column's norm; the last of 10 rounds is cut."""
    made, accountant = factor(4, 10), rdp.RdpAccountant()
    for rows in blocks:
        norm = math.sqrt(sum((c / 2**20) ** 2 for c in made.coefficients[:rows]))
        accountant.compose(dp_accounting.GaussianDpEvent(5.0 / norm))
    releases = Releases(noise_multiplier=5.0, factor=made, separation=4, participations=most)
    found = epsilon(releases, 10, 1e-5)
    assert 0.8 * accountant.get_epsilon(1e-5) < found < accountant.get_epsilon(1e-5)
    squares = sum((c / 2**20) ** 2 for rows in blocks for c in made.coefficients[:rows])
    wanted = dp_accounting.get_epsilon_gaussian(5.0 / math.sqrt(squares), 1e-5)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(
    "releases",
    [
        Releases(noise_multiplier=1.0),
        Releases(noise_multiplier=1.0, sampling="poisson", cohort=20, population=1000),
        Releases(noise_multiplier=1.0, sampling="without_replacement", cohort=4, population=9),
        Releases(noise_multiplier=1.0, tree=16),
        Releases(noise_multiplier=1.0, tree=16, participations=2),
        Releases(noise_multiplier=1.0, factor=factor(8, 64), separation=8, participations=3),
        Releases(noise_multiplier=1.0, local=True),
    ],
)
@pytest.mark.parametrize("target", [0.5, 8.0, 150.0])
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
