"""The sum is exact: it does not depend on order, chunks, shards, merges or restarts."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.strategies.exact.fixed_point import MAX_WEIGHT as LARGEST_WEIGHT
from fedloom.strategies.exact.fixed_point import MIN_WEIGHT
from fedloom.strategies.exact.partial import (
    BLOCK,
    MAX_UNITS,
    MAX_WEIGHT_SUM,
    MOST_ADDENDS,
    WEIGHT_UNIT,
    Addend,
    Full,
    Mask,
    Partial,
    Slice,
    TensorSpec,
    dense_arrays,
    exponent,
    weight_units,
)

MAX_ABS, MAX_WEIGHT, COHORT = 8.0, 1000.0, 16
EXPONENT = exponent(MAX_ABS, MAX_WEIGHT * COHORT)
SPECS = {
    ("delta", "matrix"): TensorSpec(shape=(3, 4), dtype=np.dtype(np.float32)),
    ("delta", "cube"): TensorSpec(shape=(2, 3, 2), dtype=np.dtype(np.float64)),
    ("delta", "scalar"): TensorSpec(shape=(), dtype=np.dtype(np.float32)),
    ("control", "matrix"): TensorSpec(shape=(3, 4), dtype=np.dtype(np.float16)),
}


@st.composite
def coverages(draw, shape):
    """A full, slice or mask coverage of a tensor of this shape."""
    kind = draw(st.sampled_from(["full", "slice", "mask"]))
    if kind == "full":
        return Full()
    if kind == "mask":
        size = math.prod(shape)
        return Mask(np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool))
    bounds = [sorted(draw(st.tuples(*[st.integers(0, extent)] * 2))) for extent in shape]
    return Slice(tuple((start, stop) for start, stop in bounds))


@st.composite
def parts(draw):
    """One part of an update: (key, coverage, units, values)."""
    key = draw(st.sampled_from(sorted(SPECS)))
    spec = SPECS[key]
    coverage = draw(coverages(spec.shape))
    width = spec.dtype.itemsize * 8
    value = st.floats(-MAX_ABS, MAX_ABS, width=width)
    count = coverage.count(spec.shape)
    values = np.array(draw(st.lists(value, min_size=count, max_size=count)), spec.dtype)
    weights = st.one_of(st.integers(1, 1000).map(float), st.floats(MIN_WEIGHT, MAX_WEIGHT))
    units = weight_units(draw(weights))
    return key, coverage, units, values


updates = st.lists(parts(), max_size=COHORT)


def folded(items, narrow=False):
    """The partial of these parts, in this order."""
    partial = Partial(SPECS, EXPONENT, narrow=narrow)
    for key, coverage, units, values in items:
        partial.add_array(key, coverage, units, values)
    return partial


def bits(partial):
    """Everything that determines a partial's mean, as bytes."""
    means = {key: partial.mean_block(key, 0, spec.size) for key, spec in SPECS.items()}
    return {
        key: (mean.tobytes(), np.broadcast_to(covered, mean.shape).tobytes())
        for key, (mean, covered) in means.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("narrow", [False, True])
@given(items=updates, random=st.randoms())
def test_order_does_not_change_a_bit(narrow, items, random):
    """Any permutation of the parts gives an equal partial, and the same mean bits."""
    shuffled = list(items)
    random.shuffle(shuffled)
    assert folded(items, narrow) == folded(shuffled, narrow)
    assert bits(folded(items, narrow)) == bits(folded(shuffled, narrow))


@pytest.mark.long
@pytest.mark.parametrize("narrow", [False, True])
@given(
    items=updates,
    shards=st.lists(st.integers(0, 3), min_size=COHORT, max_size=COHORT),
    order=st.permutations(range(4)),
)
def test_sharding_and_merging_do_not_change_a_bit(narrow, items, shards, order):
    """Four processes that each fold a share and merge in any order agree with one."""
    shares = [
        folded(
            [item for item, shard in zip(items, shards, strict=False) if shard == number], narrow
        )
        for number in range(4)
    ]
    a, b, c, d = (shares[number] for number in order)
    whole = folded(items, narrow)
    assert (a + b) + (c + d) == whole
    assert a + (b + (c + d)) == whole
    assert bits(((d + c) + b) + a) == bits(whole)


@pytest.mark.long
@pytest.mark.parametrize("narrow", [False, True])
@given(items=updates, done=st.integers(0, COHORT))
def test_a_restart_from_a_checkpoint_does_not_change_a_bit(narrow, items, done):
    """Arrays and header, through JSON and bytes, restore a half-folded round."""
    arrays, header = folded(items[:done], narrow).arrays()
    copies = {name: np.frombuffer(array.tobytes(), np.int64) for name, array in arrays.items()}
    resumed = Partial.from_arrays(copies, json.loads(json.dumps(header)))
    for key, coverage, units, values in items[done:]:
        resumed.add_array(key, coverage, units, values)
    assert resumed == folded(items, narrow)
    assert resumed.specs == SPECS


@pytest.mark.parametrize("narrow", [False, True])
@settings(max_examples=50)
@given(data=st.data())
def test_updates_added_together_give_the_bits_of_one_by_one(narrow, data):
    """Of one coverage, with stale ones and other dtypes among them."""
    key = data.draw(st.sampled_from(sorted(SPECS)))
    coverage = data.draw(coverages(SPECS[key].shape))
    count = coverage.count(SPECS[key].shape)
    value = st.floats(-MAX_ABS, MAX_ABS, width=16)
    one, together, addends = (*(Partial(SPECS, EXPONENT, narrow=narrow) for _ in range(2)), [])
    for _ in range(data.draw(st.integers(1, 5))):
        dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
        values = np.array(data.draw(st.lists(value, min_size=count, max_size=count)), dtype)
        units = weight_units(data.draw(st.floats(MIN_WEIGHT, MAX_WEIGHT)))
        of_values = data.draw(st.sampled_from([units, units // 3, 0]))
        one.add_array(key, coverage, units, values, value_units=of_values)
        addends.append(Addend(units, iter_reader(values, []), of_values))
    together.add_each(key, coverage, addends)
    assert together == one
    assert bits(together) == bits(one)


def test_too_many_updates_at_once_are_refused():
    """Sums of more could overflow before their carries."""
    addends = [Addend(1, iter_reader(np.zeros(12), []))] * (MOST_ADDENDS + 1)
    with pytest.raises(ValueError, match=f"Expected at most {MOST_ADDENDS} addends, got 65"):
        Partial(SPECS, EXPONENT).add_each(("delta", "matrix"), Full(), addends)


@settings(max_examples=30)
@given(st.data(), st.sampled_from([(5, 3), (2, 3, 5), (2, 2, 2, 3), (7,), ()]))
def test_the_size_of_blocks_has_no_effect(data, shape):
    """Every coverage lists its coordinates in row-major order."""
    coverage = data.draw(coverages(shape))
    count, flat = coverage.count(shape), np.zeros(math.prod(shape), np.int64)
    for limit in (1, 2, 3, 4, 7, 1000):
        flat[:] = 0
        view, position = coverage.view(flat, shape), 0
        for index, block in coverage.blocks(shape, limit):
            size = math.prod(block)
            assert 0 < size <= limit
            values = np.arange(position + 1, position + size + 1).reshape(block)
            coverage.accumulate(view, index, values)
            position += size
        assert position == count
        covered = np.zeros(flat.size, np.int64)
        coverage.add_constant(covered, shape, 1, limit)
        np.testing.assert_array_equal(flat[covered > 0], np.arange(1, count + 1))
        assert not flat[covered == 0].any()


@pytest.mark.parametrize("kind", ["full", "slice", "mask", "rows"])
def test_blocks_of_a_large_tensor_join_up(kind):
    """A tensor of several blocks has the mean that numpy computes for the covered coordinates."""
    shape, rng = (300, 701), np.random.default_rng(1)
    coverage, where = {
        "full": (Full(), np.ones(shape, bool)),
        "slice": (Slice(((5, 299), (3, 700))), np.pad(np.ones((294, 697), bool), ((5, 1), (3, 1)))),
        "rows": (Slice(((200, 300), (0, 701))), np.repeat([False, True], [200, 100])[:, None]),
        "mask": (None, rng.random(shape) < 0.3),
    }[kind]
    where = np.broadcast_to(where, shape)
    coverage = coverage or Mask(where.reshape(-1))
    values = rng.standard_normal(shape).astype(np.float32)
    key = ("delta", "w")
    partial = Partial({key: TensorSpec(shape=shape, dtype=values.dtype)}, exponent(8, 10))
    reads = []
    chunks = iter_reader(values[where], reads)
    partial.add(key, coverage, weight_units(3), chunks)
    mean, covered = partial.mean_block(key, 0, values.size)
    np.testing.assert_array_equal(np.broadcast_to(covered, mean.shape).reshape(shape), where)
    np.testing.assert_allclose(mean.reshape(shape)[where], values[where], rtol=0, atol=1e-15)
    assert max(reads) <= BLOCK
    at_hand = Partial(partial.specs, partial.exponent)
    at_hand.add_array(key, coverage, weight_units(3), values[where])
    assert at_hand == partial


def iter_reader(values, reads):
    """A reader over values that records the size of each read."""
    position = 0

    def read(count):
        nonlocal position
        reads.append(count)
        position += count
        return values[position - count : position]

    return read


@pytest.mark.long
@given(updates)
def test_the_error_of_a_narrow_sum_stays_within_the_documented_bound(items):
    """Compared with exact rationals; the bound is in docs/exactness.md."""
    partial = folded(items, narrow=True)
    for key, spec in SPECS.items():
        total, weight, magnitude, number = exact_sums(key, spec, items)
        mean, covered = partial.mean_block(key, 0, spec.size)
        covered = np.broadcast_to(covered, mean.shape)
        for at in range(spec.size):
            assert covered[at] == (weight[at] > 0)
            if weight[at]:
                exact = total[at] / weight[at]
                bound = (
                    (Fraction(number[at], 2) / Fraction(2) ** EXPONENT + magnitude[at] / 2**53)
                    / weight[at]
                ) * (1 + Fraction(1, 2**50)) + abs(exact) * Fraction(3, 2**53)
                assert abs(Fraction(float(mean[at])) - exact) <= bound


def exact_sums(key, spec, items):
    """Per coordinate: Σ x·w, Σ w, Σ |x·w| and how many updates covered it, as rationals."""
    total, weight = [Fraction(0)] * spec.size, [Fraction(0)] * spec.size
    magnitude, number = [Fraction(0)] * spec.size, [0] * spec.size
    for other, coverage, units, values in items:
        if other != key:
            continue
        touched = np.zeros(spec.size, np.int64)
        coverage.add_constant(touched, spec.shape, 1, BLOCK)
        w = units * Fraction(WEIGHT_UNIT)
        for at, value in zip(np.flatnonzero(touched), values, strict=True):
            product = Fraction(float(value)) * w
            total[at] += product
            magnitude[at] += abs(product)
            weight[at] += w
            number[at] += 1
    return total, weight, magnitude, number


def test_float32_accumulation_is_orders_of_magnitude_worse():
    """For deltas of 0.01 from 100 clients the error is under a millionth of float32's."""
    rng, size, clients = np.random.default_rng(7), 64, 100
    deltas = (0.01 * rng.standard_normal((clients, size))).astype(np.float32)
    weights = rng.integers(1, 1000, clients)
    key = ("delta", "w")
    spec = TensorSpec(shape=(size,), dtype=deltas.dtype)
    partial = Partial({key: spec}, exponent(1.0, 1000.0 * clients))
    single = np.zeros(size, np.float32)
    for delta, weight in zip(deltas, weights, strict=True):
        partial.add_array(key, Full(), weight_units(float(weight)), delta)
        single += delta * np.float32(weight)
    single /= np.float32(weights.sum())
    mean, _ = partial.mean_block(key, 0, size)
    exact = [
        sum(Fraction(float(d)) * int(w) for d, w in zip(deltas[:, at], weights, strict=True))
        / int(weights.sum())
        for at in range(size)
    ]
    ours = max(abs(Fraction(float(mean[at])) - exact[at]) for at in range(size))
    theirs = max(abs(Fraction(float(single[at])) - exact[at]) for at in range(size))
    assert ours < 2e-17
    assert ours * 1_000_000 < theirs


@given(
    max_abs=st.floats(1e-30, 1e30),
    cohort=st.integers(1, 5),
    max_weight=st.floats(MIN_WEIGHT, LARGEST_WEIGHT),
    sign=st.sampled_from([-1.0, 1.0]),
    narrow=st.booleans(),
)
def test_the_extremes_do_not_overflow(max_abs, cohort, max_weight, sign, narrow):
    """A whole cohort at the largest magnitude and weight."""
    key = ("delta", "w")
    units = weight_units(max_weight)
    s = exponent(max_abs, units * WEIGHT_UNIT * cohort)
    spec = TensorSpec(shape=(1,), dtype=np.dtype(np.float64))
    partial = Partial({key: spec}, s, narrow=narrow)
    for _ in range(cohort):
        partial.add_array(key, Full(), units, np.array([sign * max_abs]))
    mean, covered = partial.mean_block(key, 0, 1)
    assert covered is True
    assert mean[0] == pytest.approx(sign * max_abs, rel=1e-15)


@given(max_abs=st.floats(1e-200, 1e200), max_weight_sum=st.floats(2**-20, MAX_WEIGHT_SUM))
def test_the_exponent_is_the_largest_that_is_safe(max_abs, max_weight_sum):
    """Products reach at most 2^62 with s, and exceed it with s + 1."""
    s = exponent(max_abs, max_weight_sum)
    reach = Fraction(max_abs) * Fraction(max_weight_sum)
    assert reach * Fraction(2) ** s <= 2**62
    assert s == 900 or reach * Fraction(2) ** (s + 1) > 2**62


@pytest.mark.parametrize(
    ("max_abs", "max_weight_sum"),
    [
        (0, 1),
        (-1, 1),
        (math.inf, 1),
        (math.nan, 1),
        (1, 0),
        (1, math.nan),
        (1, 2.0**43),
        (1e300, 1),
    ],
)
def test_invalid_bounds_are_refused(max_abs, max_weight_sum):
    """Bounds that are not positive, not finite or too large."""
    with pytest.raises(ValueError, match="Expected"):
        exponent(max_abs, max_weight_sum)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, -math.inf, 1e18, 9e-10])
def test_weights_off_the_scale_are_refused(weight):
    with pytest.raises(ValueError, match="Expected a weight"):
        weight_units(weight)


@given(st.floats(MIN_WEIGHT, LARGEST_WEIGHT))
def test_weights_are_exact(weight):
    assert weight_units(weight) * Fraction(WEIGHT_UNIT) == Fraction(weight)


def test_a_mask_or_slice_of_everything_equals_full():
    """The mean has the same bits."""
    key, values = ("delta", "matrix"), np.linspace(-1, 1, 12, dtype=np.float32)
    ways = [Full(), Slice(((0, 3), (0, 4))), Mask(np.ones(12, bool))]
    means = []
    for way in ways:
        partial = Partial(SPECS, EXPONENT)
        partial.add_array(key, way, 12345, values)
        means.append(partial.mean_block(key, 0, 12)[0].tobytes())
    assert len(set(means)) == 1


@pytest.mark.parametrize(
    "coverage", [Full(), Slice(((0, 1), (1, 3))), Mask(np.array([1, 0, 0, 1, 0, 1], np.bool_))]
)
def test_zeros_add_their_weight(coverage):
    """`add_zeros` leaves the same sum as adding zeros."""
    key, specs = ("delta", "w"), {("delta", "w"): TensorSpec(shape=(2, 3), dtype=np.dtype("f4"))}
    read, told = Partial(specs, 20), Partial(specs, 20)
    for partial in (read, told):
        partial.add_array(key, Full(), 3, np.arange(6, dtype=np.float32))
    read.add_array(key, coverage, 5, np.zeros(coverage.count((2, 3)), np.float32))
    told.add_zeros(key, coverage, 5)
    assert told == read
    with pytest.raises(ValueError, match="units in 1"):
        told.add_zeros(key, coverage, 0)


@pytest.mark.parametrize("coverage", [Full(), Slice(((0, 1), (1, 3)))])
def test_a_tensor_of_zeros_is_covered_after_a_restart(coverage):
    """Otherwise a momentum would go on for what nobody changed."""
    key, specs = ("delta", "w"), {("delta", "w"): TensorSpec(shape=(2, 3), dtype=np.dtype("f4"))}
    partial = Partial(specs, 20)
    partial.add_zeros(key, coverage, 5)
    restored = Partial.from_arrays(*partial.arrays())
    assert restored.covered(key)
    assert restored == partial
    found, wanted = (each.mean_block(key, 0, 6)[1] for each in (restored, partial))
    assert np.array_equal(np.broadcast_to(found, 6), np.broadcast_to(wanted, 6))


@pytest.mark.parametrize("narrow", [False, True])
def test_sums_can_lie_in_given_memory(narrow):
    """Its content is overwritten by the first values; what no update changes stays untouched."""
    specs = {("delta", name): TensorSpec(shape=(3,), dtype=np.dtype("f4")) for name in "ab"}
    names = [dense_arrays(number, narrow=narrow) for number in range(2)]
    memory = {name: np.full(3, 77) for each in names for name in each}
    lent, plain = Partial(specs, 20, narrow=narrow), Partial(specs, 20, narrow=narrow)
    lent.use_memory(memory)
    for partial in (lent, plain):
        for values in ([1.5, -2.0, 0.25], [1e-9, 3.0, 4.0]):
            partial.add_array(("delta", "a"), Full(), 1 << 82, np.array(values, np.float32))
        partial.add_zeros(("delta", "b"), Full(), 1 << 82)
    assert lent == plain
    arrays = lent.arrays()[0]
    assert arrays.keys() == set(names[0])
    assert all(arrays[name] is memory[name] for name in arrays)
    assert all((memory[name] == 77).all() for name in names[1])
    lent.merge(plain)
    plain.merge(plain + Partial(specs, 20, narrow=narrow))
    assert lent == plain


def test_an_empty_partial_is_the_neutral_element():
    """It covers nothing and changes no sum."""
    empty, some = Partial(SPECS, EXPONENT), Partial(SPECS, EXPONENT)
    some.add_array(("delta", "scalar"), Full(), 7, np.array(1.5))
    assert empty + some == some == some + empty
    assert empty != some
    assert not empty.covered(("delta", "scalar"))
    mean, covered = empty.mean_block(("delta", "matrix"), 0, 12)
    assert covered is False
    assert not mean.any()


def test_adding_partials_does_not_change_them():
    """The result of `+` shares no memory with its operands."""
    a = Partial(SPECS, EXPONENT)
    a.add_array(("delta", "scalar"), Full(), 7, np.array(1.5))
    total = a + Partial(SPECS, EXPONENT)
    total.add_array(("delta", "scalar"), Full(), 7, np.array(1.5))
    assert total != a
    assert a.mean_block(("delta", "scalar"), 0, 1)[0] == 1.5


def test_draining_moves_the_sums_and_frees_them():
    """A drained partial is empty; the draining one frees a tensor once it is released."""
    key = ("delta", "scalar")
    partial = Partial(SPECS, EXPONENT)
    partial.add_array(key, Full(), 7, np.array(1.5))
    partial.release(key)
    assert partial.covered(key)
    draining = partial.drain()
    assert not partial.covered(key)
    assert draining.covered(key)
    draining.release(key)
    assert not draining.covered(key)


BAD_ADDS = {
    "unknown key": (("delta", "other"), Full(), 1, np.zeros(12)),
    "too few values": (("delta", "matrix"), Full(), 1, np.zeros(11)),
    "no weight": (("delta", "matrix"), Full(), 0, np.zeros(12)),
    "too much weight": (("delta", "matrix"), Full(), MAX_UNITS + 1, np.zeros(12)),
    "slice of another rank": (("delta", "matrix"), Slice(((0, 3),)), 1, np.zeros(3)),
    "slice past the end": (("delta", "matrix"), Slice(((0, 3), (0, 5))), 1, np.zeros(15)),
    "slice backwards": (("delta", "matrix"), Slice(((2, 1), (0, 4))), 1, np.zeros(0)),
    "mask of another size": (("delta", "matrix"), Mask(np.ones(11, bool)), 1, np.zeros(11)),
    "mask of bytes": (("delta", "matrix"), Mask(np.ones(12, np.uint8)), 1, np.zeros(12)),
}


@pytest.mark.parametrize("why", BAD_ADDS)
def test_a_part_that_does_not_fit_is_refused_and_adds_nothing(why):
    partial = Partial(SPECS, EXPONENT)
    with pytest.raises(ValueError, match="Expected"):
        partial.add_array(*BAD_ADDS[why])
    assert partial == Partial(SPECS, EXPONENT)


def test_a_reader_that_returns_another_number_of_values_is_refused():
    with pytest.raises(ValueError, match="Expected the next 12 values"):
        Partial(SPECS, EXPONENT).add(("delta", "matrix"), Full(), 1, lambda _: np.zeros(5))


def test_partials_of_different_rounds_do_not_merge():
    """Partials with another exponent or other tensors."""
    partial = Partial(SPECS, EXPONENT)
    others = (
        Partial(SPECS, EXPONENT - 1), Partial({}, EXPONENT), Partial(SPECS, EXPONENT, narrow=True),
    )  # fmt: skip
    for other in others:
        assert partial != other
        with pytest.raises(ValueError, match="same round"):
            partial.merge(other)


def test_a_checkpoint_that_does_not_fit_its_header_is_refused():
    """Arrays of another dtype, size or name."""
    partial = Partial(SPECS, EXPONENT)
    partial.add_array(("delta", "scalar"), Full(), 7, np.array(1.5))
    arrays, header = partial.arrays()
    for bad in (
        {"sums.2": np.zeros(1)},
        {"sums.2": np.zeros(2, np.int64)},
        {**arrays, "sums.9": np.zeros(1, np.int64)},
    ):
        with pytest.raises(ValueError, match="Expected"):
            Partial.from_arrays(bad, header)
