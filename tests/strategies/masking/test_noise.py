"""The noise of sessions: its scale against rationals, its room in a sum, what is refused."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedloom.strategies.exact.grid import SUM_BITS, Grid
from fedloom.strategies.exact.partial import Full, Partial, TensorSpec, weight_units
from fedloom.strategies.masking.noise import (
    LEAST_SIGMA,
    TAIL,
    MemberNoise,
    SessionNoise,
    member_sampler,
    share,
    sum_gap,
)
from fedloom.strategies.masking.plausible import SumLimits, implausible
from fedloom.strategies.masking.sessions import colluders, honest, threshold
from fedloom.strategies.privacy.accounting import SUM_GAP
from support.streams import hashed

KEY, OTHER = ("delta", "w"), ("delta", "v")


def grid_of(noise, bits=32, updates=264):
    plain = Grid(bits=bits, max_abs=noise.clip, weighting="uniform", max_weight=1.0,
                 updates=updates, session=noise.group)  # fmt: skip
    return noise.on(plain)


def test_a_third_of_a_session_is_honest_and_in_its_sum():
    """Of t members of which c add no noise; a session of three has two, by its smaller c."""
    for members in range(3, 129):
        assert honest(members) == threshold(members) - colluders(members)
        assert honest(members) == (2 if members == 3 else -(-members // 3))
    assert (honest(64), honest(16)) == (43 - 21, 11 - 5)


@pytest.mark.parametrize("members", [3, 4, 9, 16, 64, 128])
@pytest.mark.parametrize("exponent", [4, 12, 24])
def test_the_least_honest_members_have_the_noise_of_the_claim(members, exponent):
    """In rationals: h shares have the variance (z · (C · 2^s + √d / 2))², and hardly more."""
    clip, z, size = 0.75, 1.5, 10_000
    found = member_sampler(
        clip=clip, noise_multiplier=z, members=members, exponent=exponent, size=size
    ).sigma
    length = Fraction(clip) * 2**exponent + Fraction(math.isqrt(size), 2)
    wanted = (Fraction(z) * length) ** 2
    have = Fraction(found) ** 2 * (threshold(members) - colluders(members))
    assert wanted <= have <= wanted * (1 + Fraction(3, 10**6))


def test_too_few_members_have_no_noise():
    for members in (0, 2):
        with pytest.raises(ValueError, match="at least 3 members"):
            share(1.0, members)


def test_shares_of_four_steps_sum_to_a_discrete_gaussian():
    """τ√d is nothing beside 1 / z, for any session and any model."""
    for members in (2, 22, 64, 128):
        assert sum_gap(LEAST_SIGMA, members) * math.sqrt(2**60) < SUM_GAP
    assert sum_gap(0.5, 3) == pytest.approx(
        10 * (math.exp(-(math.pi**2) / 4) + math.exp(-(math.pi**2) / 3))
    )
    assert sum_gap(0.5, 64) > 1


@pytest.mark.parametrize("members", [2, 5, 22])
def test_the_gap_bounds_the_divergence_of_real_sums(members):
    """At half a step, where it can be seen: the sums of shares convolved, beside their shift.

    D_α <= α/2 · (Δ / (σ√n) + τ)² in one coordinate, Theorem 1 of Kairouz et al. 2021.
    """
    for sigma in (0.5, 0.7, 1.0):
        reach = int(12 * sigma) + 2
        one = np.exp(-np.square(np.arange(-reach, reach + 1.0)) / (2 * sigma**2))
        total = one = one / one.sum()
        for _ in range(members - 1):
            total = np.convolve(total, one)
        for moved in (1, 3):
            for alpha in (2.0, 5.0):
                p, q = total[moved:], total[:-moved]
                kept = (p > 1e-250) & (q > 1e-250)
                powers = alpha * np.log(p[kept]) + (1 - alpha) * np.log(q[kept])
                found = math.log(np.exp(powers).sum()) / (alpha - 1)
                gap = sum_gap(sigma, members)
                bound = alpha / 2 * (moved / (sigma * math.sqrt(members)) + gap) ** 2
                assert found <= bound * (1 + 1e-9)


@pytest.mark.parametrize("bits", SUM_BITS)
@pytest.mark.parametrize("group", [(3, 3), (3, 20), (16, 64), (128, 128)])
@pytest.mark.parametrize("z", [0.5, 1.0, 20.0])
def test_a_sum_has_room_for_updates_roundings_and_noise(bits, group, z):
    """B < 2^(b-1) with the shares of every session, of the largest model, in rationals."""
    noise = SessionNoise(clip=0.3, noise_multiplier=z, min_group=group[0], group=group[1])
    grid = grid_of(noise, bits)
    size = noise._largest(grid)
    assert grid.rounding == Fraction(1, 2)
    assert grid.bound < 2 ** (bits - 1)
    for members in range(group[0], group[1] + 1):
        sigma = noise.sampler(grid.exponent, members, size).sigma
        tail = Fraction(TAIL) * Fraction(sigma) * Fraction(math.sqrt(members))
        products = members * Fraction(noise.clip * (1 + 1e-6)) * Fraction(2) ** grid.exponent
        assert products + Fraction(members, 2) + tail <= grid.bound
    assert sigma * 2**0.5 >= 2**20 or grid.exponent < grid.finest
    assert grid.updates * grid.bound < 2**63


def test_noise_is_no_finer_than_it_needs():
    """Otherwise 64 bits would draw more random bytes for nothing."""
    noise = SessionNoise(clip=1.0, noise_multiplier=1.0, min_group=16, group=64)
    for bits in (32, 64):
        assert 2**20 <= noise.steps(grid_of(noise, bits), 64) < 2**22


def test_coarse_noise_is_refused_with_what_fits():
    noise = SessionNoise(clip=1.0, noise_multiplier=0.05, min_group=16, group=64)
    with pytest.raises(ValueError, match="at least 4 steps") as refused:
        noise.check(grid_of(noise, 16))
    assert "Use masking.sum_bits = 24 or privacy.noise_multiplier = 0.1." in str(refused.value)
    noise.check(grid_of(noise, 24))
    fitting = replace(noise, noise_multiplier=0.1)
    fitting.check(grid_of(fitting, 16))


def test_a_model_of_which_the_noise_is_mostly_rounding_is_refused():
    noise = SessionNoise(clip=1.0, noise_multiplier=1.0, min_group=16, group=64)
    grid = grid_of(noise, 16)
    most = noise._largest(grid)
    assert math.sqrt(most) / 2 <= noise.clip * 2**grid.exponent < math.sqrt(most + 1) / 2
    noise.check_size(grid, most)
    with pytest.raises(ValueError, match=r"Use masking\.sum_bits = 24, or a smaller") as refused:
        noise.check_size(grid, most + 1)
    assert f"at most {most:,} values" in str(refused.value)


def member(key, sigma=50.0):
    sampler = member_sampler(
        clip=sigma, noise_multiplier=math.sqrt(2), members=3, exponent=0, size=0
    )
    return MemberNoise(sampler, hashed(key), 7)


def test_noise_is_added_to_every_coordinate_without_weight():
    """Also of a tensor that no update covers; in any blocks; the mean's denominator stays."""
    specs = {KEY: TensorSpec(shape=(70_000,), dtype=np.dtype("f4")),
             OTHER: TensorSpec(shape=(3,), dtype=np.dtype("f4"))}  # fmt: skip
    partial = Partial(specs, 10, narrow=True)
    partial.add_array(KEY, Full(), weight_units(1.0), np.ones(70_000, np.float32))
    noise = member("one")
    noise.add_to(partial)
    assert np.array_equal(partial.sum_block(KEY, 0, 70_000), noise.block(KEY, 0, 70_000) + 1024)
    assert np.array_equal(partial.sum_block(OTHER, 0, 3), noise.block(OTHER, 0, 3))
    assert partial.is_even(weight_units(1.0))
    assert noise.block(KEY, 0, 9000)[4100:].tolist() == noise.block(KEY, 4100, 9000).tolist()
    assert abs(noise.block(KEY, 0, 50_000).std() / 50 - 1) < 0.02
    assert noise.block(KEY, 0, 3).tolist() != noise.block(OTHER, 0, 3).tolist()
    with pytest.raises(ValueError, match="narrow"):
        noise.add_to(Partial(specs, 10))


@pytest.mark.parametrize("bits", [16, 32])
def test_sums_with_noise_are_plausible_and_masks_are_not(bits):
    """Of twenty members at the limits; limits with half as much noise find the norm too long."""
    noise = SessionNoise(clip=1.0, noise_multiplier=2.0, min_group=16, group=20)
    grid, size, members = grid_of(noise, bits), 5000, 20
    sampler = noise.sampler(grid.exponent, members, size)
    specs = {KEY: TensorSpec(shape=(size,), dtype=np.dtype("f4"))}
    total, units = Partial(specs, grid.exponent, narrow=True), 0
    for place in range(members):
        values = np.zeros(size, np.float32)
        values[7] = 1.0
        total.add_array(KEY, Full(), weight_units(1.0), values)
        MemberNoise(sampler, hashed(place), 1).add_to(total)
        total.count += 1
        units += weight_units(1.0)
    total.wrap(bits)
    limits = SumLimits(max_abs=grid.max_abs, max_weight=1.0, max_norm=1.0, rounding=grid.rounding,
                       noise=sampler.sigma)  # fmt: skip
    assert implausible(total, units, limits) == ""
    assert "a norm of" in implausible(total, units, replace(limits, noise=sampler.sigma / 2))
    assert "more than" in implausible(total, units, replace(limits, noise=0.0))
    mask = np.random.default_rng(1).integers(-(2**62), 2**62, size)
    left = Partial(specs, grid.exponent, narrow=True)
    left.add_sums(KEY, Full(), units, mask)
    left.wrap(bits)
    left.count = members
    assert "more than" in implausible(left, units, limits)


def test_a_share_below_the_least_is_refused():
    """Whoever states the exponent: sums of coarse shares are not as private as they look."""
    asked = {"clip": 1.0, "noise_multiplier": 1.0, "members": 16, "size": 1}
    assert member_sampler(**asked, exponent=4).sigma >= LEAST_SIGMA
    with pytest.raises(ValueError, match="at least 4 steps"):
        member_sampler(**asked, exponent=3)
