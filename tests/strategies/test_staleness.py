"""Stale updates count less, and the sum divides by their full weights."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedloom.strategies import (
    DELTA,
    STALENESS,
    FedAvg,
    Full,
    Partial,
    Slice,
    TensorSpec,
    exponent,
    weight_units,
)
from fedloom.strategies.exact.fixed_point import MAX_UNITS
from fedloom.strategies.staleness import discounted, staleness_weighting

KEY = (DELTA, "w")
SPECS = {KEY: TensorSpec(shape=(4,), dtype=np.dtype(np.float64))}


def buffer_of(updates, name="inverse_sqrt"):
    """The sum of (value, weight, staleness) updates to four equal coordinates."""
    weighting = staleness_weighting(name)
    partial = Partial(SPECS, exponent(16.0, 4096.0))
    for value, weight, staleness in updates:
        units = weight_units(weight)
        values = np.full(4, value)
        value_units = discounted(units, weighting(staleness))
        partial.add_array(KEY, Full(), units, values, value_units=value_units)
    return partial


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("constant", [1, 1, 1, 1]),
        ("inverse_sqrt", [1, 2**-0.5, 0.5, 1 / 3]),
        ("polynomial", [1, 2**-0.5, 0.5, 1 / 3]),
        ({"name": "polynomial", "a": 1.0}, [1, 0.5, 0.25, 1 / 9]),
        ("hinge", [1, 1, 1, 1 / 41]),
        ({"name": "hinge", "a": 0.5, "b": 1.0}, [1, 1, 1 / 2, 1 / 4.5]),
    ],
    ids=str,
)
def test_a_weighting_is_the_formula_of_its_paper(setting, wanted):
    """At staleness 0, 1, 3 and 8."""
    weighting = staleness_weighting(setting)
    assert [weighting(s) for s in (0, 1, 3, 8)] == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("name", STALENESS)
def test_a_weighting_starts_at_one_and_never_rises(name):
    """And stays above 0."""
    factors = [STALENESS[name]()(s) for s in range(200)]
    assert factors[0] == 1
    assert all(0 < late <= early <= 1 for early, late in pairwise(factors))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("nearly", "got 'nearly'. Known: constant, hinge, inverse_sqrt, polynomial"),
        ({"a": 1.0}, "got None"),
        ({"name": "hinge", "c": 1}, "Unknown setting 'cohort.staleness."),
        ({"name": "polynomial", "a": -1}, "a"),
    ],
)
def test_an_unknown_weighting_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        staleness_weighting(setting)


def test_fedbuff_divides_by_the_size_of_the_buffer():
    """Equal weights: (1/K) Σ Δ_i / sqrt(1 + s_i), not divided by the sum of the factors."""
    updates = [(1.0, 1.0, 0), (2.0, 1.0, 3), (4.0, 1.0, 15)]
    mean, _ = buffer_of(updates).mean_block(KEY, 0, 4)
    np.testing.assert_allclose(mean, (1 + 2 / 2 + 4 / 4) / 3, rtol=1e-12)


def test_weights_count_in_full_beside_staleness():
    """Σ c(s) w x / Σ w: a fresh heavy update keeps its share."""
    mean, _ = buffer_of([(1.0, 3.0, 0), (8.0, 1.0, 3)]).mean_block(KEY, 0, 4)
    np.testing.assert_allclose(mean, (3 + 8 / 2) / 4, rtol=1e-12)


def test_fedasync_steps_by_alpha_times_the_factor():
    """With one update, x ← x + α · c(s) · Δ."""
    strategy = FedAvg(server_learning_rate=0.6)
    model = {"w": np.arange(4.0)}
    new, _ = strategy.finish(strategy.init(model), model, buffer_of([(1.0, 5.0, 3)]))
    np.testing.assert_allclose(new["w"], np.arange(4.0) + 0.6 * 0.5, rtol=1e-12)


def test_a_slice_is_divided_by_the_weight_that_covers_it():
    """Coverage and staleness compose: other coordinates do not change."""
    partial = buffer_of([(1.0, 1.0, 0)])
    part = Slice(((0, 2),))
    units = weight_units(1.0)
    partial.add_array(KEY, part, units, np.full(2, 4.0), value_units=discounted(units, 0.5))
    mean, _ = partial.mean_block(KEY, 0, 4)
    np.testing.assert_allclose(mean, [1.5, 1.5, 1.0, 1.0], rtol=1e-12)


@given(
    st.lists(
        st.tuples(st.floats(-16, 16), st.floats(2**-20, 100), st.integers(0, 50)),
        min_size=1, max_size=8,
    ),
    st.randoms(),
)  # fmt: skip
def test_a_buffer_is_the_same_bits_in_any_order(updates, draw):
    """Staleness is rounded into each addend once."""
    shuffled = list(updates)
    draw.shuffle(shuffled)
    assert buffer_of(updates) == buffer_of(shuffled)


@given(st.integers(1, MAX_UNITS), st.integers(1, 1000))
@example(1_137_251_637, 2)  # 656592538.76: rounded to an integer first, it was the farther one
def test_a_discounted_weight_is_the_product_in_29_bits(units, staleness):
    """It is between 0 and the weight, and as near to the product as 29 bits can be."""
    factor = staleness_weighting("inverse_sqrt")(staleness)
    got = discounted(units, factor)
    assert 0 <= got <= units
    odd_part = got >> max((got & -got).bit_length() - 1, 0)
    assert odd_part.bit_length() <= 29
    product = Fraction(factor) * units
    assert abs(got - product) <= max(Fraction(1), product * Fraction(1, 2**29))


@given(st.integers(1, MAX_UNITS))
def test_a_weight_that_is_not_discounted_keeps_every_bit(units):
    assert discounted(units, 1.0) == units


def test_values_cannot_count_for_more_than_their_weight():
    """The bound against overflow is on the weight."""
    partial = Partial(SPECS, 0)
    with pytest.raises(ValueError, match="value_units"):
        partial.add_array(KEY, Full(), 5, np.zeros(4), value_units=6)
    with pytest.raises(ValueError, match="factor"):
        discounted(5, 1.5)
