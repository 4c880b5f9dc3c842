"""Means of exact sums against rational arithmetic, over any values, weights and cohorts."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fedloom.strategies.exact.fixed_point import MAX_WEIGHT_SUM, MIN_WEIGHT
from fedloom.strategies.exact.partial import (
    Full,
    Mask,
    Partial,
    Slice,
    TensorSpec,
    exponent,
    weight_units,
)
from support.marks import sampled

KEY = ("delta", "w")
SIZE = 6
DTYPES = ("f2", "f4", "f8")


def empty(max_abs=1024.0, max_weight=2.0**18, goal=10, narrow=False):
    """A partial with the bounds of a run, as the server chooses its exponent."""
    most = min(max_weight * (2 * goal + 64), MAX_WEIGHT_SUM)
    spec = TensorSpec(shape=(SIZE,), dtype=np.dtype(np.float32))
    return Partial({KEY: spec}, exponent(max_abs, most), narrow=narrow)


def values_of(rng, max_abs):
    """Values whose magnitudes spread over up to 90 powers of e, in a random dtype."""
    dtype = np.dtype(rng.choice(DTYPES))
    most = min(max_abs, float(np.finfo(dtype).max))
    least = rng.choice([-90.0, -12.0])
    magnitudes = np.exp(rng.uniform(least, math.log(most), SIZE))
    return (rng.choice([-1, 1], SIZE) * magnitudes.clip(max=most)).astype(dtype)


def weight_of(rng, max_weight):
    """A whole number of examples, or any number from 1e-9 on."""
    if rng.random() < 0.5:
        return float(rng.integers(1, min(1000, max_weight)))
    return max(float(np.exp(rng.uniform(math.log(1e-9), math.log(max_weight)))), MIN_WEIGHT)


def coverage_of(rng):
    """A coverage, and the coordinates that it lists."""
    kind = rng.integers(3)
    if kind == 0:
        return Full(), np.arange(SIZE)
    if kind == 1:
        start, stop = sorted(rng.integers(0, SIZE + 1, 2).tolist())
        return Slice(((start, stop),)), np.arange(start, stop)
    bits = rng.random(SIZE) < 0.7
    return Mask(bits), np.flatnonzero(bits)


def check_round(seed, cohorts):
    """Fold a random round and compare every coordinate with its rational mean."""
    rng = np.random.default_rng(seed)
    goal = int(rng.choice(cohorts))
    max_abs = float(rng.choice([1.0, 1024.0, 1e6, 1e30]))
    max_weight = min(float(rng.choice([1e3, 2.0**18, 1e9])), MAX_WEIGHT_SUM / (2 * goal + 64))
    partial = empty(max_abs, max_weight, goal)
    totals, weights = [Fraction(0)] * SIZE, [Fraction(0)] * SIZE
    largest = [Fraction(0)] * SIZE
    for _ in range(goal):
        weight, (coverage, at) = weight_of(rng, max_weight), coverage_of(rng)
        sent = values_of(rng, max_abs)[: at.size]
        partial.add_array(KEY, coverage, weight_units(weight), sent)
        for place, value in zip(at, sent, strict=True):
            exact = Fraction(float(value))
            totals[place] += exact * Fraction(weight)
            weights[place] += Fraction(weight)
            largest[place] = max(largest[place], abs(exact))
    means, covered = partial.mean_block(KEY, 0, SIZE)
    covered = np.broadcast_to(covered, SIZE)
    for place in range(SIZE):
        assert covered[place] == (weights[place] > 0)
        if weights[place]:
            check_mean(means[place], totals[place] / weights[place], largest[place])


def check_mean(mean, exact, largest):
    """It is within 4 · 2^-53 of itself; in float32 the correctly rounded one or its neighbour.

    If the values cancel to a last 2^-40, what is left is within 2^-64 of the largest value.
    """
    if abs(exact) < largest / 2**40:
        assert abs(Fraction(float(mean)) - exact) <= largest / 2**64
        return
    assert abs(Fraction(float(mean)) - exact) <= abs(exact) * 4 / 2**53
    correct = np.float32(float(exact))
    neighbours = np.nextafter(correct, np.float32([-np.inf, np.inf]))
    assert np.float32(mean) in (correct, *neighbours)


@pytest.mark.long
@pytest.mark.parametrize("seed", sampled(range(60), 4))
def test_means_are_rational_means_rounded_once(seed):
    check_round(seed, [1, 2, 3, 10, 100])


@pytest.mark.long
@pytest.mark.parametrize("seed", sampled(range(1000, 2000, 50), 7))
def test_a_thousand_rounds_of_cohorts_to_ten_thousand_have_rational_means(seed):
    for number in range(seed, seed + 50):
        cohorts = [10_000] if number % 200 == 0 else [1, 2, 3, 10, 100, 300]
        check_round(number, cohorts)


@pytest.mark.parametrize("goal", [100, 1000])
def test_small_updates_do_not_vanish(goal):
    """Shares 1/n under the default bounds: a narrow sum is 10.6 % off, and 0 for 1,000 clients."""
    means = {}
    for narrow in (False, True):
        partial = empty(goal=goal, narrow=narrow)
        for _ in range(goal):
            sent = np.full(SIZE, 1e-5, np.float32)
            partial.add_array(KEY, Full(), weight_units(1 / goal), sent)
        means[narrow] = partial.mean_block(KEY, 0, SIZE)[0].astype(np.float32)
    assert (means[False] == np.float32(1e-5)).all()
    assert not np.allclose(means[True], 1e-5, rtol=0.05)


@pytest.mark.parametrize(
    ("weight", "narrow", "whole", "in_part"),
    [(300.0, False, 16, 24), (3.3, False, 24, 40), (300.0, True, 8, 16)],
)
def test_the_bytes_of_a_coordinate_are_the_documented_ones(weight, narrow, whole, in_part):
    """Under default bounds; a third word is for weights that are not whole numbers."""
    partial, sent = empty(narrow=narrow), np.linspace(-0.01, 0.02, SIZE, dtype=np.float32)
    for coverage, expected in ((Full(), whole), (Slice(((0, SIZE - 1),)), in_part)):
        length = SIZE if expected == whole else SIZE - 1
        partial.add_array(KEY, coverage, weight_units(weight), sent[:length])
        assert sum(array.nbytes for array in partial.arrays()[0].values()) == expected * SIZE


@pytest.mark.long
def test_more_slices_than_a_word_holds_are_carried():
    """The largest slices of word 1, all of one sign, 20,000 times; the sum stays exact."""
    partial, value = empty(1.0, 1.0, 20_000), np.float32(0.1)
    for coverage in (Full(), Slice(((0, SIZE),))):
        for _ in range(10_000):
            partial.add_array(KEY, coverage, weight_units(1.0), np.full(SIZE, value))
    assert partial.mean_block(KEY, 0, SIZE)[0] == pytest.approx(np.full(SIZE, value), rel=1e-15)
    assert partial == restored(partial)


def restored(partial):
    arrays, header = partial.arrays()
    return Partial.from_arrays({name: array.copy() for name, array in arrays.items()}, header)


def test_words_below_the_second_are_kept_in_checkpoints_and_merges():
    """Values of 1 and 1e-38 that cancel but for the smallest: nothing is lost."""
    halves = [empty(), empty()]
    for number, value in enumerate([1.0, 1e-38, -1.0]):
        sent = np.full(SIZE, value, np.float32)
        halves[number % 2].add_array(KEY, Full(), weight_units(3.0), sent)
    total = restored(halves[0]) + restored(halves[1])
    assert len(total.arrays()[0]) > 2
    assert total.mean_block(KEY, 0, SIZE)[0] == pytest.approx(
        np.full(SIZE, np.float32(1e-38) / 3.0), rel=1e-15
    )


@pytest.mark.parametrize("deep", [1, 6, 7, 50, 100], ids="{} of 100".format)
def test_few_values_below_the_second_word_have_the_sums_of_many(deep):
    """Few are added by index, many by passes over the block; both equal the rational sum."""
    size = 100
    rng = np.random.default_rng(deep)
    values = np.where(np.arange(size) < deep, rng.normal(0, 1e-25, size), 1.0).astype(np.float32)
    rng.shuffle(values)
    partial = Partial(
        {KEY: TensorSpec(shape=(size,), dtype=np.dtype(np.float32))}, exponent(1024.0, 2.0**28)
    )
    for weight in (3.0, 0.1):
        partial.add_array(KEY, Full(), weight_units(weight), values)
    words = [array for name, array in partial.arrays()[0].items() if name.startswith("sums")]
    assert len(words) > 2
    unit = Fraction(2) ** -(exponent(1024.0, 2.0**28) - 12)
    for place, value in enumerate(values):
        total = sum(int(word[place]) * unit / 2 ** (50 * n) for n, word in enumerate(words))
        assert total == Fraction(float(value)) * (3 + Fraction(0.1))


def test_a_checkpoint_of_an_earlier_version_is_continued():
    """It has one word, and weights in units of 2^-20."""
    old = empty(narrow=True)
    old.add_array(KEY, Full(), weight_units(3.0), np.ones(SIZE))
    arrays, header = old.arrays()
    text = header["entries"].replace(str(weight_units(3.0)), str(3 << 20))
    assert text != header["entries"]
    kept = {"exponent": header["exponent"], "count": header["count"], "entries": text}
    again = Partial.from_arrays(arrays, kept)
    assert again.nonzero == 0  # not counted then
    old.nonzero = 0
    assert again == old
    assert again.narrow
