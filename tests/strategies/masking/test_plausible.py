"""Sums that cannot be those of updates within the limits are found."""

import numpy as np
import pytest

from fedloom.strategies.exact.fixed_point import weight_units
from fedloom.strategies.exact.grid import SUM_BITS, Grid
from fedloom.strategies.exact.partial import SCALAR, Full, Partial, Slice, TensorSpec
from fedloom.strategies.masking.plausible import SumLimits, implausible, implausible_weight

KEY, SIZE, GROUP = ("delta", "w"), 200, 20
SPECS = {KEY: TensorSpec(shape=(SIZE,), dtype=np.dtype("f4"))}


def grid(bits=32):
    return Grid(
        bits=bits, max_abs=0.5, weighting="examples", max_weight=9.0, updates=104, session=64
    )


def limits(of, max_norm=None):
    return SumLimits(max_abs=of.max_abs, max_weight=9.0, max_norm=max_norm, rounding=of.rounding)


def session(of, values=0.5, specs=SPECS):
    partial, units = Partial(specs, of.exponent, narrow=True), 0
    for weight in range(1, 10):
        own = weight_units(float(weight))
        partial.add_array(KEY, Full(), own, np.full(SIZE, values))
        partial.count += 1
        units += own
    return partial, units


@pytest.mark.parametrize("bits", SUM_BITS)
def test_updates_at_the_limits_are_plausible(bits):
    of = grid(bits)
    for values in (0.5, -0.5, 0.0):
        partial, units = session(of, values)
        assert implausible(partial, units, limits(of)) == ""


@pytest.mark.parametrize("bits", SUM_BITS)
def test_a_mask_that_is_left_is_found(bits):
    """Random words in place of sums; of 200 coordinates some is beyond the limits."""
    of = grid(bits)
    partial, units = session(of)
    mask = np.random.default_rng(bits).integers(-(2**62), 2**62, SIZE)
    partial.add_sums(KEY, Full(), 1, mask)
    partial.wrap(bits)
    kept = Partial(SPECS, of.exponent, narrow=True)
    kept.add_sums(KEY, Full(), units, partial.sum_block(KEY, 0, SIZE))
    kept.count = partial.count
    assert "steps in 'w', more than" in implausible(kept, units, limits(of))


def test_one_step_beyond_the_limit_is_found():
    of = grid()
    partial, units = session(of)
    one = np.zeros(SIZE, np.int64)
    one[17] = partial.count  # the roundings could explain half of it
    beside = Partial(SPECS, of.exponent, narrow=True)
    beside.add_sums(KEY, Full(), units, partial.sum_block(KEY, 0, SIZE) + one)
    beside.count = partial.count
    assert "more than" in implausible(beside, units, limits(of))


def test_weights_out_of_range_are_found():
    of = grid()
    partial, units = session(of)
    assert implausible_weight(units, partial.count, limits(of)) == ""
    assert "weights that sum to" in implausible_weight(units * 100, partial.count, limits(of))
    assert "weights that sum to" in implausible_weight(1, partial.count, limits(of))


def test_members_that_cover_different_coordinates_are_found():
    of = grid()
    partial, units = session(of)
    partial.add_array(KEY, Slice(((0, 5),)), weight_units(1.0), np.zeros(5))
    partial.count += 1
    assert "only some of the members" in implausible(partial, units + weight_units(1.0), limits(of))


def test_a_norm_beyond_the_limit_is_found():
    """Values of 0.5 in 200 coordinates have norm 7.07; scalars do not count, as on admission."""
    of = grid()
    specs = {**SPECS, (SCALAR, "tau"): TensorSpec(shape=(), dtype=np.dtype("f8"))}
    partial, units = session(of, specs=specs)
    for weight in range(1, 10):
        partial.add_array((SCALAR, "tau"), Full(), weight_units(float(weight)), np.array(0.5))
    assert implausible(partial, units, limits(of, 7.08)) == ""
    assert "a norm of" in implausible(partial, units, limits(of, 7.06))
