"""Narrow sums against rational arithmetic: they fit their bits, and state error and zeros."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fedloom.strategies.exact.fixed_point import MAX_WEIGHT_SUM, MIN_WEIGHT, exponent
from fedloom.strategies.exact.grid import SUM_BITS, Grid, grid_lines
from fedloom.strategies.exact.partial import Full, Mask, Partial, Slice, TensorSpec, weight_units
from fedloom.strategies.staleness import discounted

KEY = ("delta", "w")
SIZE = 7


def empty(grid):
    spec = TensorSpec(shape=(SIZE,), dtype=np.dtype(np.float32))
    return Partial({KEY: spec}, grid.exponent, narrow=True)


def random_grid(rng, bits):
    """Bounds of a random run, the loose defaults among them."""
    updates = int(rng.choice([66, 84, 264, 2064, 20_064]))
    return Grid(
        bits=bits,
        max_abs=float(rng.choice([1e-30, 0.03, 1.0, 7.3, 1024.0, 1e30])),
        weighting=str(rng.choice(["uniform", "examples", "client"])),
        max_weight=min(float(rng.choice([1.0, 600.0, 2.0**18, 2.0**33])), MAX_WEIGHT_SUM / updates),
        updates=updates,
    )


def random_update(rng, grid):
    """A weight, a coverage with the coordinates that it lists, values, and a staleness factor."""
    dtype = np.dtype(rng.choice(["f2", "f4", "f8"] if 1e-3 < grid.max_abs < 1e4 else ["f4", "f8"]))
    small = math.exp(rng.choice([0.0, -5.0, -20.0]))
    raw = rng.uniform(-1, 1, SIZE) * grid.max_abs * small * rng.integers(0, 2, SIZE)
    values = raw.astype(dtype).clip(-grid.max_abs, grid.max_abs)
    weight = float(rng.integers(1, int(grid.heaviest) + 1))
    if grid.weighting == "client":
        low, high = math.log(MIN_WEIGHT), math.log(grid.heaviest)
        weight = min(max(math.exp(rng.uniform(low, high)), MIN_WEIGHT), grid.heaviest)
    bits = rng.random(SIZE) < 0.6
    coverage, at = [
        (Full(), np.arange(SIZE)),
        (Slice(((2, 5),)), np.arange(2, 5)),
        (Mask(bits), np.flatnonzero(bits)),
    ][rng.integers(3)]
    return weight, coverage, at, values[: at.size], float(rng.choice([1.0, 1.0, 0.37, 0.0]))


def add(partial, update):
    weight, coverage, _, values, factor = update
    units = weight_units(weight)
    partial.add_array(KEY, coverage, units, values, value_units=discounted(units, factor))


class Oracle:
    """The same sum in rational arithmetic."""

    def __init__(self, grid):
        self.grid = grid
        self.totals, self.weights = [Fraction(0)] * SIZE, [Fraction(0)] * SIZE
        self.nonzero = self.vanished = 0

    def add(self, update):
        weight, _, at, values, factor = update
        counted = Fraction(discounted(weight_units(weight), factor), 1 << 82)
        half = Fraction(1, 2) * Fraction(2) ** -self.grid.exponent
        for place, value in zip(at, values, strict=True):
            product = Fraction(float(value)) * counted
            self.totals[place] += product
            self.weights[place] += Fraction(weight)
            self.nonzero += product != 0
            self.vanished += product != 0 and abs(product) <= half

    def check(self, partial):
        most = 2 ** (self.grid.bits - 1)
        assert all(-most < total < most for total in partial.sum_block(KEY, 0, SIZE).tolist())
        assert (partial.nonzero, partial.vanished) == (self.nonzero, self.vanished)
        means = partial.mean_block(KEY, 0, SIZE)[0].tolist()
        for mean, total, weight in zip(means, self.totals, self.weights, strict=True):
            if weight:
                error = abs(Fraction(mean) - total / weight)
                assert error <= Fraction(self.grid.largest_error)


@pytest.mark.long
@pytest.mark.parametrize("bits", SUM_BITS)
@pytest.mark.parametrize("seed", range(25))
def test_rounds_fit_their_bits_and_stay_within_the_stated_error(bits, seed):
    """Random bounds, weights, coverages and staleness: error and zeros are the oracle's."""
    rng = np.random.default_rng([seed, bits])
    grid = random_grid(rng, bits)
    partial, oracle = empty(grid), Oracle(grid)
    for _ in range(int(rng.choice([1, 3, 40]))):
        update = random_update(rng, grid)
        add(partial, update)
        oracle.add(update)
        oracle.check(partial)


@pytest.mark.parametrize("bits", SUM_BITS)
@pytest.mark.parametrize("seed", range(6))
def test_order_shards_merges_and_restarts_keep_bits_and_counts(bits, seed):
    rng = np.random.default_rng([seed, bits, 1])
    grid = random_grid(rng, bits)
    updates = [random_update(rng, grid) for _ in range(30)]
    whole, shards = empty(grid), [empty(grid) for _ in range(3)]
    for update in updates:
        add(whole, update)
    for place in rng.permutation(30):
        shard = rng.integers(3)
        add(shards[shard], updates[place])
        arrays, header = shards[shard].arrays()
        copies = {name: array.copy() for name, array in arrays.items()}
        shards[shard] = Partial.from_arrays(copies, header)
    total = shards[2] + (shards[0] + shards[1])
    assert total == whole
    assert (total.sum_block(KEY, 0, SIZE) == whole.sum_block(KEY, 0, SIZE)).all()
    assert (total.nonzero, total.vanished) == (whole.nonzero, whole.vanished)
    assert whole.nonzero > 0
    drained = total.drain()
    assert (drained.nonzero, drained.vanished) == (whole.nonzero, whole.vanished)
    assert (total.nonzero, total.vanished, total.underflow) == (0, 0, None)


@pytest.mark.parametrize("bits", [16, 24])
@pytest.mark.parametrize("max_abs", [1.0, 3e-5, 1.9999])
@pytest.mark.parametrize("updates", [66, 2064, 30_000])
def test_the_worst_addends_of_a_whole_round_fit(bits, max_abs, updates):
    """All updates at both bounds, and all of them rounded up by half a step.

    With max_abs · updates just above a power of two, or few bits for many updates, the roundings
    are what a grid without room for them overflows by.
    """
    grid = Grid(bits=bits, max_abs=max_abs, weighting="uniform", max_weight=1.0, updates=updates)
    step, most = Fraction(2) ** -grid.exponent, 2 ** (bits - 1)
    up = (math.floor(Fraction(max_abs) / step - Fraction(1, 2)) + Fraction(1, 2)) * step
    for value in (max_abs, float(up) * (1 + 2**-40)):
        partial = empty(grid)
        sent = np.full(SIZE, min(value, max_abs))
        partial.add_array(KEY, Full(), weight_units(1.0), sent)
        [addend] = set(partial.sum_block(KEY, 0, SIZE).tolist())
        assert abs(addend) * updates < most


def test_a_grid_leaves_room_for_the_roundings_of_many_updates():
    """At 16 bits the plain formula gives room for 2^14 halves of a step, no more."""
    few, many = (exponent(1.0, n, bits=16, updates=n) for n in (2**13, 2**15))
    assert few == 1  # 14 − 13
    assert many == -2  # 14 − 15 = −1 would reach 2^14 + 2^14
    with pytest.raises(ValueError, match="fewer than 65534 updates"):
        exponent(1.0, 1.0, bits=16, updates=2**16)
    with pytest.raises(ValueError, match="updates >= 1"):
        exponent(1.0, 1.0, bits=16)


def test_sums_of_64_bits_keep_the_grid_that_runs_were_begun_with():
    for max_abs, most in ((1024.0, 2.0**18 * 84), (1.0, 66.0), (3.7, 1e9), (1e30, 1.0)):
        wanted = 62 - math.ceil(math.log2(max_abs * most))
        assert exponent(max_abs, most) == exponent(max_abs, most, bits=64, updates=84) == wanted


def test_exact_sums_count_no_zeros():
    partial = Partial({KEY: TensorSpec(shape=(SIZE,), dtype=np.dtype("f4"))}, 27)
    partial.add_array(KEY, Full(), weight_units(1.0), np.full(SIZE, 1e-30, np.float32))
    assert (partial.nonzero, partial.vanished, partial.underflow) == (0, 0, None)


def test_a_precision_that_the_bounds_miss_is_refused_with_both_figures_and_a_remedy():
    grid = Grid(bits=32, max_abs=1024.0, weighting="examples", max_weight=2.0**18, updates=84)
    assert grid.largest_error == pytest.approx(16, rel=1e-9)  # half of 2^(35 − 30)
    with pytest.raises(ValueError, match=r"precision >= 16, .*got 0\.001.*sum_bits = 64"):
        grid.check(1e-3)
    fits = Grid(bits=32, max_abs=1.0, weighting="examples", max_weight=1000.0, updates=84)
    fits.check(fits.largest_error)
    with pytest.raises(ValueError, match=r"max_abs 1 · max_weight 1000 · 84 updates is 8\.4e\+04"):
        fits.check(math.nextafter(fits.largest_error, 0))


def test_the_product_that_a_refusal_names_is_enough():
    grid = Grid(bits=24, max_abs=1024.0, weighting="uniform", max_weight=1.0, updates=84)
    with pytest.raises(ValueError, match="needs about") as refused:
        grid.check(1e-4)
    needed = float(str(refused.value).split("needs about ")[1].split()[0].rstrip("."))
    tight = Grid(
        bits=24, max_abs=needed / 84 * 0.99, weighting="uniform", max_weight=1.0, updates=84
    )
    tight.check(1e-4)


def test_lines_name_step_error_and_values_that_vanish():
    grid = Grid(bits=32, max_abs=1.0, weighting="examples", max_weight=1000.0, updates=84)
    first, error, zeros = grid_lines(grid.facts(1e-4))
    assert first.startswith("32 bits, rounded to steps of 0.0001221 = 2^-13")
    assert error.startswith("largest error: 6.104e-05 of a mean")
    assert "6.104e-05 at weight 1, 6.104e-08 at weight 1000" in zeros
