"""Sums of sessions against integers of Python and rationals: they fit b bits, and keep the bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.codecs.draws import stream, uniform32
from fedloom.strategies.exact.fixed_point import (
    MIN_MASKED_WEIGHT,
    Scaler,
    exponent,
    masked_weight,
    weight_units,
)
from fedloom.strategies.exact.grid import SUM_BITS, Grid
from fedloom.strategies.exact.partial import Full, Mask, Partial, Slice, TensorSpec

KEY = ("delta", "w")
SHAPE = (3, 4)
SIZE = 12


def empty(grid):
    return Partial({KEY: TensorSpec(shape=SHAPE, dtype=np.dtype("f4"))}, grid.exponent, narrow=True)


grids = st.builds(
    Grid,
    bits=st.sampled_from(SUM_BITS),
    max_abs=st.sampled_from([1e-30, 3e-5, 0.5, 1.0, 1.9999, 7.3, 1024.0, 1e30]),
    weighting=st.sampled_from(["uniform", "examples", "client"]),
    max_weight=st.sampled_from([1.0, 3.0, 600.0, 2.0**18]),
    updates=st.sampled_from([66, 84, 264, 20_064]),
    session=st.integers(3, 128),
)


def random_updates(rng, grid, count):
    """(values, weight, seed) of the members of a session; some of them at the bounds."""
    for _ in range(count):
        weight = float(rng.integers(1, int(grid.heaviest) + 1))
        if grid.weighting == "client":
            weight = masked_weight(math.exp(rng.uniform(math.log(1e-5), math.log(grid.heaviest))))
        raw = rng.uniform(-1, 1, SIZE) * rng.integers(0, 2, SIZE) * rng.choice([1.0, 1e-4])
        values = np.float32(raw * grid.max_abs).clip(-grid.max_abs, grid.max_abs)
        if rng.random() < 0.3:  # the worst case: float64 holds the bound exactly
            values = np.where(rng.integers(0, 2, SIZE), grid.max_abs, -grid.max_abs)
            weight = grid.heaviest
        yield values, weight, int(rng.integers(2**63))


def draws_of(grid, seed):
    return uniform32(stream(seed, "sum_bits/delta", "w")) if grid.is_stochastic else None


def added(grid, updates):
    """The sum of updates as a session's partial, without reduction modulo 2^b."""
    partial = empty(grid)
    for values, weight, seed in updates:
        units = weight_units(weight)
        partial.add_array(KEY, Full(), units, values, draws=draws_of(grid, seed))
        partial.count += 1
    return partial


@settings(max_examples=80, deadline=None)
@given(grid=grids, seed=st.integers(0, 2**32), share=st.floats(0.05, 1))
def test_a_session_in_words_of_b_bits_has_the_sum_of_its_members(grid, seed, share):
    """Each addend modulo 2^b, added in Python modulo 2^b, read with a sign: the partial's sums.

    The same words, added to a partial as an unmasked session, give an equal partial; rationals
    give the mean within the stated error; and no sum exceeds the stated bound.
    """
    rng, modulus = np.random.default_rng(seed), 2**grid.bits
    members = max(1, int(share * grid.in_one))
    updates = list(random_updates(rng, grid, members))
    words = [0] * SIZE
    exact = [Fraction(0)] * SIZE
    for values, weight, own in updates:
        scaler = Scaler(weight_units(weight), grid.exponent, SIZE, draws_of(grid, own))
        addends = scaler.addends(values).tolist()
        for place, (value, addend) in enumerate(zip(values.tolist(), addends, strict=True)):
            product = Fraction(value) * Fraction(weight)
            off = abs(addend - product * Fraction(2) ** grid.exponent)
            assert off <= grid.rounding + abs(addend) * Fraction(1, 2**52)
            exact[place] += product
            words[place] = (words[place] + addend) % modulus
    signed = [(word + modulus // 2) % modulus - modulus // 2 for word in words]

    partial = added(grid, updates)
    before = partial.sum_block(KEY, 0, SIZE)
    partial.wrap(grid.bits)
    assert partial.sum_block(KEY, 0, SIZE).tolist() == before.tolist() == signed
    assert max(map(abs, signed)) <= grid.bound < modulus // 2

    weights = [weight for _, weight, _ in updates]
    units = sum(map(weight_units, weights))
    unmasked = empty(grid)
    unmasked.add_sums(KEY, Full(), units, np.array(signed, np.int64))
    unmasked.count, unmasked.nonzero, unmasked.vanished = members, partial.nonzero, partial.vanished
    assert unmasked == partial

    means, _ = partial.mean_block(KEY, 0, SIZE)
    for mean, total in zip(means.tolist(), exact, strict=True):
        true = total / sum(map(Fraction, weights))
        assert abs(Fraction(mean) - true) <= Fraction(grid.largest_error)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), group=st.integers(3, 128), goal=st.integers(1, 300))
def test_b_64_has_the_bits_of_unmasked_sums_for_any_split(seed, group, goal):
    """Sessions of 64 bits, merged, equal the narrow sum of the whole round, bit for bit."""
    rng = np.random.default_rng(seed)
    bounds = {"bits": 64, "max_abs": 1.5, "weighting": "examples", "max_weight": 600.0}
    plain = Grid(**bounds, updates=2 * goal + 64)
    masked = Grid(**bounds, updates=2 * goal + 64, session=group)
    assert masked.exponent == plain.exponent or group > 2 * goal + 64
    assert masked.exponent == exponent(1.5, 600.0 * (2 * goal + 64))
    updates = list(random_updates(rng, masked, goal))
    whole, merged = added(plain, updates), empty(masked)
    for start in range(0, goal, group):
        session = added(masked, updates[start : start + group])
        session.wrap(64)
        merged.merge(session)
    assert merged == whole


@pytest.mark.parametrize("bits", SUM_BITS)
@pytest.mark.parametrize("group", [3, 64, 127, 128])
@pytest.mark.parametrize("max_abs", [1.0, 3e-5, 1.9999])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_session_at_its_bounds_fits(bits, group, max_abs, sign):
    """All members at both bounds, rounded up by as much as a rounding can."""
    grid = Grid(
        bits=bits, max_abs=max_abs, weighting="examples", max_weight=7.0, updates=400, session=group
    )
    up = (lambda count: np.zeros(count, np.uint32)) if grid.is_stochastic else None
    partial = empty(grid)
    for _ in range(group):
        values = np.full(SIZE, sign * max_abs)
        partial.add_array(KEY, Full(), weight_units(7.0), values, draws=up)
    [before] = set(partial.sum_block(KEY, 0, SIZE).tolist())
    assert abs(before) <= grid.bound < 2 ** (bits - 1)
    partial.wrap(bits)
    assert set(partial.sum_block(KEY, 0, SIZE).tolist()) == {before}


def test_one_bit_more_would_overflow():
    """The bound is not loose: twice the step leaves room, half of it overflows at the bounds."""
    for bits in (16, 24, 32):
        grid = Grid(
            bits=bits, max_abs=1.9, weighting="uniform", max_weight=1.0, updates=200, session=64
        )
        finer = Partial(
            {KEY: TensorSpec(shape=SHAPE, dtype=np.dtype("f8"))}, grid.exponent + 1, narrow=True
        )
        for _ in range(64):
            finer.add_array(KEY, Full(), weight_units(1.0), np.full(SIZE, 1.9))
        before = finer.sum_block(KEY, 0, SIZE)
        assert before[0] > 2 ** (bits - 2)
        finer.add_sums(KEY, Full(), weight_units(1.0), before)
        finer.wrap(bits)
        assert finer.sum_block(KEY, 0, SIZE)[0] < 0


@pytest.mark.parametrize("bits", [16, 24])
def test_a_session_of_narrow_words_rounds_stochastically_without_bias(bits):
    """Of all 2^16 draws spaced equally, the share of the fraction rounds up, exactly."""
    grid = Grid(bits=bits, max_abs=2.0, weighting="uniform", max_weight=1.0, updates=84, session=64)
    assert grid.is_stochastic
    for value in (0.3, -0.3, 1.7, 0.0, -1.0, 2.0**-grid.exponent, 1e-12, -1e-12):
        spaced = np.arange(2**16, dtype=np.uint32) << 16
        scaler = Scaler(weight_units(1.0), grid.exponent, 2**16, lambda _, spaced=spaced: spaced)
        addends = scaler.addends(np.full(2**16, value))
        product = value * 2.0**grid.exponent
        assert set(addends.tolist()) <= {math.floor(product), math.floor(product) + 1}
        assert float(addends.mean()) == pytest.approx(product, abs=2**-15)


def test_draws_are_the_halves_of_the_outputs_in_any_calls():
    whole = uniform32(5)(100_003)
    rng, draw, pieces = np.random.default_rng(0), uniform32(5), []
    while sum(map(len, pieces)) < 100_003:
        left = 100_003 - sum(map(len, pieces))
        pieces.append(draw(min(left, int(rng.integers(1, 40_000)))))
    assert (np.concatenate(pieces) == whole).all()
    assert abs(whole.mean() / 2**32 - 0.5) < 0.005
    assert len(set(whole.tolist())) > 99_990


def test_sums_of_a_class_cover_its_box_alone():
    """Members that train a slice, or a mask: as if each had been added."""
    rng = np.random.default_rng(3)
    grid = Grid(bits=32, max_abs=1.0, weighting="examples", max_weight=9.0, updates=84, session=64)
    for coverage in (Slice(((0, 2), (1, 4))), Mask(rng.random(SIZE) < 0.4)):
        each, whole = empty(grid), np.zeros(coverage.count(SHAPE), np.int64)
        weights = [1.0, 4.0, 9.0]
        for weight in weights:
            values = rng.uniform(-1, 1, whole.size)
            each.add_array(KEY, coverage, weight_units(weight), values)
            whole += Scaler(weight_units(weight), grid.exponent, whole.size).addends(values)
        units = sum(map(weight_units, weights))
        merged = empty(grid)
        merged.add_sums(KEY, coverage, units, whole)
        merged.nonzero, merged.vanished = each.nonzero, each.vanished
        assert merged == each
        assert each.is_even(units)
        each.add_array(KEY, coverage, weight_units(1.0), np.zeros(whole.size))
        assert not each.is_even(units)
        assert each.is_even(units + weight_units(1.0))
        each.add_array(KEY, Full(), weight_units(1.0), np.zeros(SIZE))
        assert not each.is_even(units + weight_units(2.0))


def test_sums_are_refused_where_they_cannot_be_added():
    grid = Grid(bits=32, max_abs=1.0, weighting="uniform", max_weight=1.0, updates=84, session=64)
    with pytest.raises(ValueError, match="Expected 12 sums"):
        empty(grid).add_sums(KEY, Full(), 1, np.zeros(11, np.int64))
    exact = Partial({KEY: TensorSpec(shape=SHAPE, dtype=np.dtype("f4"))}, 20)
    for refused in (lambda: exact.wrap(32), lambda: exact.add_sums(KEY, Full(), 1, np.zeros(12))):
        with pytest.raises(ValueError, match="narrow"):
            refused()


def test_masked_weights_are_multiples_of_2_to_the_minus_20():
    for weight in (1.0, 600.0, 2.0**33, 2.0**-20, 0.1, 600.1):
        found = masked_weight(weight)
        assert (found * 2**20).is_integer()
        assert abs(Fraction(found) - Fraction(weight)) <= Fraction(1, 2**21)
    assert masked_weight(17.0) == 17.0
    for weight in (MIN_MASKED_WEIGHT / 2, 0.0, -1.0, math.nan, 2.0**34):
        with pytest.raises(ValueError, match="in a masked sum"):
            masked_weight(weight)


DEFAULTS = {
    "max_abs": 1024.0,
    "weighting": "examples",
    "max_weight": 2.0**18,
    "updates": 84,
    "session": 64,
}


@pytest.mark.parametrize("bits", SUM_BITS[:-1])
@pytest.mark.parametrize("precision", [3.3e-5, 2e-6])
@pytest.mark.parametrize("weighting", ["examples", "uniform", "client"])
def test_the_largest_bounds_that_a_refusal_names_fit_and_larger_ones_do_not(
    bits, precision, weighting
):
    """max_abs · max_weight, and each alone; two tenths of a percent more are refused."""
    bounds = {**DEFAULTS, "weighting": weighting, "bits": bits}
    if weighting == "client":
        bounds |= {"max_weight": 3.0, "max_abs": 10.0}
    grid = Grid(**bounds)
    with pytest.raises(ValueError, match="Expected steps") as refused:
        grid.check(precision)
    text = str(refused.value)
    assert f"{grid.step:.4g} = 2^{-grid.exponent}" in text
    product = float(text.split("that fits is ")[1].split(maxsplit=1)[0].rstrip(":"))
    alone = {"max_abs": product / grid.heaviest}
    if "max_abs = " in text:
        alone = {"max_abs": float(text.split("max_abs = ")[1].split(maxsplit=1)[0].rstrip(","))}
    assert grid.largest_product(precision) == pytest.approx(product, rel=1e-3)
    Grid(**bounds | alone).check(precision)
    more = {"max_abs": alone["max_abs"] * 1.002}
    with pytest.raises(ValueError, match="Expected steps"):
        Grid(**bounds | more).check(precision)
    if "max_weight = " in text:
        weight = float(text.split("max_weight = ")[1].split(maxsplit=1)[0])
        Grid(**bounds | {"max_weight": weight}).check(precision)
        with pytest.raises(ValueError, match="Expected steps"):
            Grid(**bounds | {"max_weight": weight * 1.002}).check(precision)
    accepted = float(text.split("masking.precision = ")[1].rstrip("."))
    grid.check(accepted)


def test_a_refusal_offers_only_what_helps():
    with pytest.raises(ValueError, match=r'weighting = "uniform", or masking\.sum_bits = 64'):
        Grid(**DEFAULTS, bits=32).check(1e-3)
    with pytest.raises(ValueError, match="Expected steps") as refused:
        Grid(**{**DEFAULTS, "max_weight": 2.0**30}, bits=16).check(1e-9)
    assert "uniform" not in str(refused.value)  # 16 bits cannot reach that with any weights
