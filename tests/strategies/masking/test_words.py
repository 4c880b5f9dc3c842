"""The words of masked updates: order, sums modulo 2^64, and means against rationals."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fedloom.strategies.masking.words import KINDS, MaskedWords
from fedloom.strategies.summed_metrics import summed


def words(**changes):
    usual = {"weighted": True, "kinds": KINDS, "bounds": {"loss": 100.0, "accuracy": 1.0}}
    return MaskedWords(**{**usual, "max_examples": 1000, **changes})


def test_the_order_of_words():
    assert words().names == (
        "weight",
        *("training.examples", "training.accuracy.examples", "training.accuracy"),
        *("training.loss.examples", "training.loss"),
        *("evaluation.examples", "evaluation.accuracy.examples", "evaluation.accuracy"),
        *("evaluation.loss.examples", "evaluation.loss"),
    )
    alone = words(weighted=False, kinds=("evaluation",), bounds={})
    assert alone.names == ("evaluation.examples",)


@pytest.mark.parametrize("seed", range(10))
def test_means_are_those_of_rationals_to_2_to_the_minus_20(seed):
    """Each metric is weighted by the examples of the clients that report it."""
    rng, made = np.random.default_rng(seed), words()
    reports = [
        (
            int(rng.integers(0, 1500)),
            {n: float(rng.normal() * 3) for n in ("loss", "accuracy", "x") if rng.random() < 0.7},
        )
        for _ in range(64)
    ]
    sums = made.added(made.of(2.5, {"training": each}) for each in reports)
    assert sums["weight"] == 64 * 2.5 * 2**20
    found = made.means("training", sums)
    assert found["num_examples"] == sum(min(n, 1000) for n, _ in reports)
    for name, bound in made.bounds.items():
        held = [(min(n, 1000), min(max(m[name], -bound), bound)) for n, m in reports if name in m]
        total = sum(n for n, _ in held)
        true = sum(Fraction(n) * Fraction(value) for n, value in held) / total
        assert abs(Fraction(found["values"][name]) - true) <= Fraction(len(held), 2**21 * total) * 2
    assert "x" not in found["values"]
    assert made.means("evaluation", sums) == {}


@pytest.mark.parametrize("seed", range(10))
def test_sums_of_words_pass_as_metrics_without_loss(seed):
    """Of several sites, as of one; sums of all sessions may have more than 64 bits."""
    rng, made = np.random.default_rng(seed), words()

    def drawn():
        return 1 + (int(rng.integers(0, 2**62)) >> int(rng.integers(0, 62)))

    each = [
        {name: drawn() for name in made.names}
        | {"training.loss": -int(rng.integers(0, 2**62)), "evaluation.loss.examples": 0}
        | {"evaluation.loss": 0}
        for _ in range(9)
    ]
    for kind in KINDS:
        total = summed(made.summed(kind, sums) for sums in each)
        assert "loss" in total.values or kind == "evaluation"
        found = made.words_of(kind, total)
        assert found == {
            name: sum(sums[name] for sums in each) for name in made.names if name.startswith(kind)
        }


def test_words_are_added_modulo_2_to_the_64():
    """What a server adds: large masks cancel."""
    made = words(kinds=("training",), bounds={"loss": 10.0})
    reports = [{"training": (7, {"loss": -2.0})}, {"training": (5, {"loss": 1.5})}]
    plain = [made.of(1.0, report) for report in reports]
    mask = 2**64 - 12345
    masked = [
        {name: value + mask for name, value in plain[0].items()},
        {name: value - mask for name, value in plain[1].items()},
    ]
    assert made.added(masked) == made.added(plain)
    assert made.added(plain)["training.loss"] == round(-6.5 * 2**20)


def test_a_weight_that_would_become_zero_and_a_metric_that_is_no_number_are_refused():
    with pytest.raises(ValueError, match="masked sum"):
        words().of(2.0**-30, {})
    with pytest.raises(ValueError, match="NaN"):
        words().of(1.0, {"training": (3, {"loss": math.nan})})
    assert words().of(0.0, {})["weight"] == 0  # a client that sends no tensors
    assert words().of(1.0, {"training": (2, {"loss": math.inf})})["training.loss"] == 200 * 2**20
