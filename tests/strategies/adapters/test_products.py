"""Means by products: against float64 sums of products, and numpy's best approximation."""

from fractions import Fraction

import numpy as np
import pytest

from fedloom.strategies import FedAvg, State
from fedloom.strategies import reduced as means_of
from fedloom.strategies.adapters.products import Others, average
from fedloom.strategies.adapters.settings import Adapters
from support.adapters import OTHER, REST, A, B, best_error, mean_product, model_of, updates_of

DROP, SEND = Adapters(aggregate="product"), Adapters(aggregate="product", rest="send")
STACK = Adapters(aggregate="stack")
MIXED = (6, 2, 4, 6, 1)
WEIGHTS = (3.0, 10.0, 0.5, 7.0, 2.0)


def finished(model, updates, adapters, seed="0"):
    """The next model, and the note."""
    strategy = FedAvg()
    means = Others(means_of(strategy, State(), updates))
    new, _ = strategy.finish(State(), model, means)
    averaged, note = average(updates, model, adapters, seed)
    return new | averaged, note


def function(model):
    """What a model adds to the frozen weight, float64."""
    product = model[B].astype(np.float64) @ model[A].astype(np.float64)
    return product + model.get(REST, 0.0)


@pytest.mark.parametrize("ranks", [(6,) * 5, MIXED], ids=["equal", "mixed"])
def test_the_factors_are_the_best_of_the_mean_product(ranks):
    """Their error is Eckart and Young's; that of the means of the factors is much larger."""
    model = model_of()
    updates, factors = updates_of(model, ranks, WEIGHTS)
    expected = mean_product(factors, WEIGHTS)
    new, note = finished(model, updates, DROP)
    error, best = np.linalg.norm(function(new) - expected), best_error(expected, 6)
    assert error == pytest.approx(best, rel=1e-6)
    assert f"{best / np.linalg.norm(expected):.1%}" in note
    naive, _ = FedAvg().finish(State(), model, means_of(FedAvg(), State(), updates))
    assert np.linalg.norm(function(naive) - expected) > 2 * best


@pytest.mark.parametrize("adapters", [SEND, STACK], ids=["product", "stack"])
@pytest.mark.parametrize("ranks", [(6,) * 5, MIXED], ids=["equal", "mixed"])
def test_the_function_is_the_mean_of_the_functions(adapters, ranks):
    """To float32: with the difference to the frozen weight nothing is lost."""
    model = model_of(rest=True)
    updates, factors = updates_of(model, ranks, WEIGHTS)
    expected = mean_product(factors, WEIGHTS) + model[REST]
    new, note = finished(model, updates, adapters)
    np.testing.assert_allclose(function(new), expected, atol=2e-7 * np.abs(expected).max())
    assert not note


def test_the_sum_of_products_is_that_of_rational_arithmetic():
    """A stack's difference is the rounded exact mean."""
    model = model_of(4, 5, 2, rest=True)
    weights = (3.0, 0.1, 1e5)
    updates, factors = updates_of(model, (2, 1, 2), weights)
    new, _ = finished(model, updates, STACK)
    for i in range(4):
        for j in range(5):
            exact = sum(
                Fraction(w) * sum(Fraction(b[i, r]) * Fraction(a[r, j]) for r in range(2))
                for w, (b, a) in zip(weights, factors, strict=True)
            ) / sum(map(Fraction, weights)) + Fraction(float(model[REST][i, j]))
            assert new[REST][i, j] == pytest.approx(float(exact), rel=2**-23)


def test_a_stack_begins_a_new_adapter():
    """Without a function, in peft's range; other numbers in each round, the same when repeated."""
    model = model_of(rest=True)
    updates, _ = updates_of(model, MIXED, WEIGHTS)
    one, again, two = (finished(model, updates, STACK, seed)[0] for seed in ("1", "1", "2"))
    assert not one[B].any()
    assert 0.5 / np.sqrt(20) < np.abs(one[A]).max() <= 1 / np.sqrt(20)
    assert np.array_equal(one[A], again[A])
    assert not np.array_equal(one[A], two[A])


@pytest.mark.parametrize("adapters", [DROP, SEND, STACK], ids=["drop", "send", "stack"])
def test_other_tensors_keep_their_mean(adapters):
    """A bias beside the adapters is averaged as without them."""
    model = model_of(rest=True)
    updates, _ = updates_of(model, MIXED, WEIGHTS)
    plain, _ = FedAvg().finish(State(), model, means_of(FedAvg(), State(), updates))
    new, _ = finished(model, updates, adapters)
    assert np.array_equal(new[OTHER], plain[OTHER])
    assert adapters is not DROP or np.array_equal(new[REST], model[REST])


def test_a_round_without_change_keeps_the_function():
    """One client that trained nothing: the same product by other factors."""
    model = model_of()
    updates, _ = updates_of(model, (6,), (1.0,))
    still = {name: np.zeros_like(value) for name, value in model.items()}
    same = type(updates).of({"one": still})
    new, note = finished(model, same, DROP)
    np.testing.assert_allclose(function(new), function(model), atol=1e-5)
    assert not note


def test_order_of_arrival_and_of_tensors_change_no_bit():
    """Updates come in another order; factors and differences stand apart in the model."""
    model = model_of(rest=True)
    updates, _ = updates_of(model, MIXED, WEIGHTS)
    expected, _ = finished(model, updates, SEND)
    turned = {name: model[name] for name in (REST, OTHER, B, A)}
    found, _ = finished(turned, updates, SEND)
    assert all(np.array_equal(found[name], expected[name]) for name in model)


def test_many_updates_are_multiplied_in_parts():
    """More ranks than are stacked at once."""
    model = model_of(8, 8, 8)
    count = 70
    weights = tuple(float(1 + n % 7) for n in range(count))
    updates, factors = updates_of(model, (8,) * count, weights)
    new, _ = finished(model, updates, DROP)
    np.testing.assert_allclose(function(new), mean_product(factors, weights), atol=1e-5)
