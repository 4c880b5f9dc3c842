"""Metrics are averaged by examples and spread over clients, independent of the order."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import MetricsSettings
from fedloom.strategies.metrics import histogram, quantile, summarize, weighted_mean

reports = st.lists(
    st.tuples(
        st.integers(0, 10**9),
        st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats(allow_nan=True)),
    )
)


def test_each_metric_is_averaged_over_clients_that_report_it():
    """A client without a metric does not count for it."""
    assert weighted_mean(
        [(1, {"loss": 4.0, "accuracy": 0.5}), (3, {"loss": 8.0}), (0, {"unused": 1.0})]
    ) == {"accuracy": 0.5, "loss": 7.0}


@given(reports, st.randoms())
def test_order_does_not_change_a_bit_of_a_metric(items, random):
    """Any permutation gives the same mean, overflow and NaN included."""
    shuffled = list(items)
    random.shuffle(shuffled)
    assert repr(weighted_mean(items)) == repr(weighted_mean(shuffled))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_makes_its_own_mean_nan(value):
    means = weighted_mean([(1, {"loss": value, "accuracy": 1.0}), (1, {"loss": 1.0})])
    assert math.isnan(means["loss"])
    assert means["accuracy"] == 1.0


def test_a_sum_past_float64_is_nan():
    assert math.isnan(weighted_mean([(1, {"loss": 1e308}), (1, {"loss": 1e308})])["loss"])


def test_a_weight_is_limited():
    """The oracle is rational arithmetic."""
    items = [(1 << 42, {"loss": 0.001}), (300, {"loss": 2.0}), (100, {"loss": 4.0})]
    limit = Fraction(250)
    weights = [min(Fraction(count), limit) for count, _ in items]
    total = sum(w * Fraction(v["loss"]) for w, (_, v) in zip(weights, items, strict=True))
    assert weighted_mean(items, 250.0)["loss"] == pytest.approx(float(total / sum(weights)))
    assert weighted_mean(items)["loss"] == pytest.approx(0.001, rel=1e-3)


@given(reports, st.floats(1e-3, 1e12), st.randoms())
def test_order_does_not_change_a_bit_of_a_limited_mean(items, limit, random):
    shuffled = random.sample(items, len(items))
    assert repr(weighted_mean(items, limit)) == repr(weighted_mean(shuffled, limit))


def test_a_negative_number_of_examples_is_refused():
    with pytest.raises(ValueError, match="num_examples >= 0"):
        weighted_mean([(-1, {})])


# ---- spread over clients -------------------------------------------------------------------------

EVERYTHING = MetricsSettings(quantiles=(0.0, 0.1, 0.5, 1.0), bins=4, per_client=True)
ordered = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30).map(
    sorted
)


def named(items):
    return [(f"client-{place}", *item) for place, item in enumerate(items)]


def test_a_summary_by_hand():
    """Clients without a loss, with a loss of NaN, with examples alone, and with none."""
    found = summarize(
        [
            ("e", 1, {"accuracy": 0.0}),
            ("d", 4, {"loss": math.nan, "accuracy": 1.0}),
            ("c", 3, {"loss": 4.0, "accuracy": 1.0}),
            ("b", 2, {"loss": 1.0, "accuracy": 0.5}),
            ("a", 1, {"loss": 2.0, "accuracy": 0.5}),
            ("idle", 0, {"loss": 99.0}),
            ("mute", 7, {}),
        ],
        MetricsSettings(quantiles=[0.25, 0.5], bins=2, per_client=True),
    )
    assert found["num_examples"] == 18
    assert found["values"]["accuracy"] == pytest.approx((4 + 3 + 1 + 0.5) / 11)
    assert math.isnan(found["values"]["loss"])
    assert found["quantiles"] == {
        "accuracy": {"0.25": 0.5, "0.5": 0.5, "0.75": 1.0},
        "loss": {"0.25": 1.5, "0.5": 2.0, "0.75": 3.0},
    }
    assert found["disagree"] == ["loss"]
    assert found["histograms"] == {
        "accuracy": {"edges": [0.0, 0.5, 1.0], "counts": [1, 4]},
        "loss": {"edges": [1.0, 2.5, 4.0], "counts": [2, 1]},
    }
    assert found["not_finite"] == {"loss": 1}
    assert list(found["clients"]) == ["a", "b", "c", "d", "e", "mute"]
    assert found["clients"]["b"] == {"num_examples": 2, "values": {"loss": 1.0, "accuracy": 0.5}}


@given(reports, st.randoms())
def test_order_does_not_change_a_bit_of_a_summary(items, random):
    """Quantiles, histograms and single clients included."""
    clients = named(items)
    assert repr(summarize(random.sample(clients, len(clients)), EVERYTHING)) == repr(
        summarize(clients, EVERYTHING)
    )


def test_a_summary_holds_16_bytes_for_a_value():
    """And one metric at a time in order; reports that were kept would take six times that."""
    clients, names = 10_000, ("loss", "accuracy", "f1", "recall")
    reports = ((f"client-{n}", n + 1, dict.fromkeys(names, n / 7)) for n in range(clients))
    tracemalloc.start()
    found = summarize(reports, MetricsSettings())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["quantiles"]["loss"]["0.5"] == pytest.approx((clients - 1) / 2 / 7)
    assert peak < 1.2 * clients * (16 * len(names) + 2 * (24 + 8))


def fleet(*others):
    """Nine clients with losses around 2, and others."""
    return [("c", 100, {"loss": 1.96 + place / 100}) for place in range(9)] + list(others)


@pytest.mark.parametrize(
    ("clients", "disagree"),
    [
        (fleet(), False),
        (fleet(("x", 100, {"loss": 0.001})), True),
        (fleet(("x", 100, {"loss": 1.8})), False),  # 1.98, the first quartile
        (fleet(("x", 1 << 42, {"loss": 0.001})), True),
        (fleet(("x", 1 << 42, {"loss": 2.0})), False),
        (fleet(("x", 1, {"loss": math.nan})), True),
        ([("a", 1, {"loss": 0.0}), ("b", 100, {"loss": 1.0})], False),  # nobody is the outlier
        ([("a", 3, {"loss": 0.1})] * 7, False),  # rounding is no disagreement
    ],
)
def test_a_mean_outside_the_quartiles_disagrees(clients, disagree):
    """With any limit of weights; the oracle of quartiles is numpy."""
    found = summarize(clients, MetricsSettings(quantiles=(), max_weight=2.0**18))
    assert found.get("disagree", []) == ["loss"] * disagree
    values = [v["loss"] for _, _, v in clients if math.isfinite(v["loss"])]
    expected = np.quantile(values, [0.25, 0.5, 0.75])
    assert list(found["quantiles"]["loss"].values()) == pytest.approx(list(expected))


@given(st.floats(-1e6, 1e6), st.integers(1, 1 << 62))
def test_fewer_than_a_quarter_of_the_clients_do_not_move_the_quartiles_beyond_the_others(
    value, claimed
):
    clients = [*fleet(), ("x", claimed, {"loss": value}), ("y", claimed, {"loss": value})]
    quartiles = summarize(clients, MetricsSettings())["quantiles"]["loss"]
    assert all(1.96 <= quartiles[share] <= 2.04 for share in ("0.25", "0.5", "0.75"))


@given(ordered, st.floats(0, 1))
def test_a_quantile_is_numpys(values, share):
    """Type 7, numpy's default; never outside the values."""
    found = quantile(values, share)
    assert values[0] <= found <= values[-1]
    tame = [value for value in values if abs(value) < 1e100]
    if tame:
        assert quantile(tame, share) == pytest.approx(
            float(np.quantile(tame, share)), rel=1e-9, abs=1e-9 * (1 + max(map(abs, tame)))
        )


@given(ordered, st.integers(1, 9))
def test_a_histogram_counts_each_client_once(values, bins):
    """Within ascending edges; also numbers at the limits of float64."""
    edges, counts = histogram(values, bins)
    assert sum(counts) == len(values)
    assert len(edges) == len(counts) + 1
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (values[0], values[-1])


def test_a_histogram_is_numpys():
    """Except where rounding decides the side of an edge."""
    values = sorted(np.random.default_rng(0).normal(size=500).tolist())
    counts, edges = np.histogram(values, 7)
    found = histogram(values, 7)
    np.testing.assert_allclose(found[0], edges, rtol=1e-12)
    assert found[1] == counts.tolist()


def test_disabled_metrics_are_not_computed():
    """Then even a value that cannot be compared is accepted."""
    poison = [("a", 2, {"loss": object()})]
    assert summarize(poison, MetricsSettings(enabled=False)) == {"num_examples": 2, "values": {}}
    only = MetricsSettings(mean=False, quantiles=(), per_client=True)
    assert summarize([("a", 2, {"loss": 1.0})], only).keys() == {
        "num_examples", "values", "clients", "quantiles",
    }  # fmt: skip
    assert summarize([], EVERYTHING) == {}
    assert summarize([("a", 0, {"loss": 1.0})], EVERYTHING) == {}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"enabled": 1}, TypeError, "enabled as true or false, got 1"),
        ({"quantiles": 0.5}, TypeError, "quantiles as a list"),
        ({"quantiles": [0.5, 1.5]}, ValueError, "quantiles from 0 to 1"),
        ({"quantiles": [0.9, 0.1]}, ValueError, "ascending"),
        ({"bins": -1}, ValueError, "bins >= 0"),
        ({"edges": [0, 1]}, TypeError, "edges by metric"),
        ({"edges": {"loss": 3}}, TypeError, "edges.loss as a list"),
        ({"edges": {"loss": [0, "a"]}}, TypeError, "edges.loss"),
        ({"edges": {"loss": [0]}}, ValueError, "edges.loss as two or more"),
        ({"edges": {"loss": [1, 1]}}, ValueError, "ascending"),
        ({"edges": {"loss": range(1020), "top1": range(5)}}, ValueError, "got 1025"),
        ({"edges": {"loss": [0, float("inf")]}}, ValueError, "edges.loss"),
    ],
)
def test_invalid_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        MetricsSettings(**settings)
