import math

import numpy as np
import pytest

from fedloom.strategies.privacy import discrete
from support.streams import hashed


def source_of(key):
    stream = hashed(key)
    return lambda position, count: stream("noise", 1, position, count)


def masses(sigma, reach):
    weights = np.exp(-np.square(np.arange(-reach, reach + 1.0)) / (2 * sigma**2))
    return weights / weights.sum()


def test_table_inverts_the_distribution_function():
    """Each magnitude has its share of 2^127 of the discrete Gaussian, to 1e-15."""
    _, thresholds = discrete._thresholds()
    found = np.diff([0, *thresholds, 2**127])
    wanted = masses(128, 1800)
    folded = np.concatenate([[wanted[1800]], 2 * wanted[1801:]])
    assert np.allclose((found / 2.0**127)[:1000], folded[:1000].astype(object).astype(float), 1e-13)


def test_words_on_a_threshold_are_compared_to_their_last_bit():
    """If 64 bits are equal, the other 63 decide."""
    _, thresholds = discrete._thresholds()
    for place in (0, 7, 300):
        top, rest = thresholds[place] >> 63, thresholds[place] & (2**63 - 1)
        high = np.array([[top]], np.uint64)
        assert discrete.table_samples(high, np.array([[rest << 1]], np.uint64)) == place + 1
        assert discrete.table_samples(high, np.array([[(rest - 1) << 1]], np.uint64)) == place
        assert discrete.table_samples(high, np.array([[(rest << 1) | 1]], np.uint64)) == -place - 1


def test_combination_is_the_discrete_gaussian():
    """The convolution of the first level is the wide discrete Gaussian, to 1e-11 in every mass."""
    a, b = 48, 47
    base = masses(128, 1700)
    reach = 1700 * a
    spread_a, spread_b = np.zeros(2 * reach + 1), np.zeros(2 * reach + 1)
    spread_a[::a] = base
    spread_b[(reach - 1700 * b) : (reach + 1700 * b) + 1 : b] = base
    sigma = 128 * math.hypot(a, b)
    size = 4 * reach + 1
    exact = np.fft.irfft(np.fft.rfft(spread_a, size) * np.fft.rfft(spread_b, size), size)
    middle = 2 * reach
    near = np.arange(-int(3 * sigma), int(3 * sigma) + 1)
    wanted = np.exp(-np.square(near / sigma) / 2)
    wanted /= math.sqrt(2 * math.pi) * sigma
    assert np.abs(exact[middle + near] / wanted - 1).max() < 1e-8


@pytest.mark.parametrize("sigma", [1.0, 200.0, 4255.0, 2.0**16, 1.7e6, 2.0**31, 2.0**55])
def test_scale_is_at_least_the_requested_one(sigma):
    """Never less noise than accounted for, and hardly more."""
    found = discrete.sampler(sigma)
    assert found.sigma >= sigma
    if sigma >= 2**20:
        assert found.sigma <= 1.01 * sigma
    scale = 128.0
    for a, b in found.levels:  # the condition of the convolution theorem
        assert math.gcd(a, b) == 1
        assert a * math.sqrt(2) * 4.7 <= scale * math.sqrt(2 * math.pi)
        scale *= math.hypot(a, b)


SCALES = [1.0, 4.0, 17.3, 181.0, 1024.0, 1025.0, 8599.0, 8601.0, 12171.0, 2.0**20, 1.7e6, 2.0**55]


@pytest.mark.parametrize("sigma", SCALES)
def test_a_fitted_scale_is_the_requested_one(sigma):
    found = discrete.fitted(sigma)
    assert sigma <= found.sigma <= sigma * (1 + 2.0**-48)
    scale = found.base
    assert scale == pytest.approx(sigma) if sigma <= 1024 else 128 <= scale < 152
    for a, b in found.levels:  # the condition of the convolution theorem
        assert b >= 1
        assert math.gcd(a, b) == 1
        assert a * math.sqrt(2) * 4.7 <= scale * math.sqrt(2 * math.pi)
        scale *= math.hypot(a, b)


@pytest.mark.parametrize("sigma", [4.0, 17.3, 181.0])
def test_a_table_of_its_own_has_the_masses_of_its_scale(sigma):
    """Each magnitude has its share of 2^127, computed in float64."""
    _, thresholds = discrete._thresholds(sigma)
    reach = int(20 * sigma)
    wanted = masses(sigma, reach)
    folded = np.concatenate([[wanted[reach]], 2 * wanted[reach + 1 :]])
    found = np.diff([0, *thresholds, 2**127]) / 2.0**127
    many = int(7 * sigma)
    assert np.allclose(found[:many].astype(float), folded[:many], rtol=1e-11)


@pytest.mark.parametrize("sigma", [4.0, 900.0, 5000.0, 3e5])
def test_fitted_noise_has_its_variance(sigma):
    """100,000 draws, within five deviations."""
    drawn = discrete.fitted(sigma).draw(source_of(f"fitted {sigma}"), 0, 100_000) / sigma
    assert abs(drawn.mean()) < 5 / math.sqrt(drawn.size)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / drawn.size)


def test_noise_is_gaussian():
    """200,000 draws have the moments and tail shares of a Gaussian, within five deviations."""
    sampler = discrete.sampler(2.0**20)
    drawn = sampler.draw(source_of("moments"), 0, 200_000) / sampler.sigma
    n = drawn.size
    assert abs(drawn.mean()) < 5 / math.sqrt(n)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96 / n)
    for z in (0.5, 1, 2, 3):
        share = math.erfc(z / math.sqrt(2))
        assert abs((np.abs(drawn) > z).mean() - share) < 5 * math.sqrt(share / n)


def test_low_bits_are_uniform():
    """The lowest bits of the noise hide those of the sum."""
    drawn = discrete.sampler(2.0**20).draw(source_of("bits"), 0, 100_000)
    for bit in range(10):
        assert abs(((drawn >> bit) & 1).mean() - 0.5) < 5 * 0.5 / math.sqrt(drawn.size)


def test_noise_does_not_depend_on_the_blocks():
    """Any part of a tensor's noise can be computed separately."""
    sampler = discrete.sampler(2.0**20)
    whole = sampler.draw(source_of("blocks"), 0, 20_000)
    parts = [sampler.draw(source_of("blocks"), at, at + 700) for at in range(0, 19_600, 700)]
    assert np.array_equal(np.concatenate(parts), whole[:19_600])
    assert sampler.draw(source_of("blocks"), 5, 5).size == 0


def test_out_of_range_scales_are_refused():
    for sigma in (0.0, -1.0, math.nan, 2.0**57):
        with pytest.raises(ValueError, match="Expected sigma"):
            discrete.sampler(sigma)
        with pytest.raises(ValueError, match="Expected sigma"):
            discrete.fitted(sigma)
