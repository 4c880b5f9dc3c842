"""Curves, milestones and totals match the rounds."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedloom.simulation.output import curves, scales, words
from support.histories import history


def test_the_main_metric_is_the_best_measured_accuracy():
    """Test metrics before clients' evaluation, and training metrics only without both."""
    assert curves.main_metric(history(2)) == ("test", "accuracy")
    only_training = [dataclasses.replace(record, test={}) for record in history(2)]
    assert curves.main_metric(only_training) == ("training", "accuracy")
    assert curves.main_of({"evaluation": ["mae"], "training": ["accuracy"]}) == (
        "evaluation",
        "mae",
    )
    assert curves.main_metric([]) is None


def test_the_best_value_is_highest_for_shares_and_lowest_for_others():
    points = [(1, math.nan), (2, 0.5), (3, 0.9), (4, 0.9), (5, 0.7)]
    assert curves.best(points, "accuracy") == (3, 0.9)
    assert curves.best(points, "loss") == (2, 0.5)
    assert curves.best([(1, math.nan)], "loss") is None


def test_wall_time_continues_after_a_resumption():
    first, second = history(3), history(2)
    times = curves.wall_times([*first, *second])
    assert times == sorted(times)
    assert times[-1] == pytest.approx(first[-1].wall_s + second[-1].wall_s)


def test_milestones_are_first_times():
    records = history(60)
    found = curves.milestones(records, "test", "accuracy", most=20)
    for milestone in found:
        record = records[milestone.round - 1]
        assert record.test["accuracy"] >= milestone.value
        assert all(r.test["accuracy"] < milestone.value for r in records[: milestone.round - 1])
        assert milestone.virtual_s == record.virtual_s
    assert [m.value for m in found] == sorted({m.value for m in found})
    assert curves.milestones(records, "test", "loss") == []


def test_balance_is_mean_over_longest():
    record = history(1, workers=2)[0]
    assert curves.balance(record) == pytest.approx(0.95)
    assert curves.balance(history(1, workers=1)[0]) is None
    assert curves.mean_balance([]) is None


def test_workers_are_added_up_over_rounds():
    """Clients, busy time, and its share of the rounds' time."""
    records = history(4, workers=2)
    first, second = curves.workers(records)
    assert (first.clients, second.clients) == (20, 20)
    assert first.share == pytest.approx(1.0)
    assert second.share == pytest.approx(0.9)


@given(st.lists(st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=400), st.integers(8, 60))
def test_thinning_keeps_the_ends_and_the_extremes(values, most):
    points = [(float(x), y) for x, y in enumerate(values)]
    kept = curves.thinned(points, most)
    assert len(kept) <= most
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    finite = [y for y in values if math.isfinite(y)]
    left = [y for _, y in kept if math.isfinite(y)]
    assert (min(left, default=0), max(left, default=0)) == (
        min(finite, default=0),
        max(finite, default=0),
    )


@given(
    st.lists(st.floats(-1e199, 1e199), min_size=1, max_size=20),
    st.sampled_from(["loss", "accuracy"]),
)
@example([5e-324], "loss")
@example([1e127, 2e-179], "loss")
def test_an_axis_holds_all_values_and_few_ticks(values, metric):
    scale = scales.AxisScale.of([*values, math.nan, math.inf], metric)
    assert scale.low < scale.high
    slack = 1e-9 * (scale.high - scale.low)
    assert all(scale.low - slack <= value <= scale.high + slack for value in values)
    assert 2 <= len(scale.ticks) <= 9
    assert all(-1e-9 <= scale.place(tick) <= 1 + 1e-9 for tick in scale.ticks)


def test_a_range_of_many_magnitudes_is_drawn_in_logarithms():
    scale = scales.AxisScale.of([1e-3, 1e6], "loss")
    assert scale.log
    assert scale.place(scale.low) == pytest.approx(0)
    assert not scales.AxisScale.of([0.001, 0.9], "accuracy").log
    assert math.isfinite(scales.AxisScale.of([1e127, 2e-179], "loss").place(1e127))


def test_labels_of_shares_are_exact():
    """Steps of 2.5 % need a decimal, steps of 2 % none."""
    narrow = scales.AxisScale.of([0.801, 0.912], "accuracy")
    assert [float(narrow.label(t)[:-1]) for t in narrow.ticks] == pytest.approx(
        [100 * t for t in narrow.ticks]
    )


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_ticks_of_rounds_are_whole_and_within(low, length):
    ticks = scales.whole_ticks(low, low + length)
    assert 1 <= len(ticks) <= 8
    assert all(tick == int(tick) and low <= tick <= low + length for tick in ticks)


@given(st.floats(0, 1e9))
def test_ticks_of_time_are_few_and_within(high):
    ticks = scales.time_ticks(high)
    assert ticks[0] == 0
    assert len(ticks) <= 8
    assert ticks[-1] <= high * (1 + 1e-9)


@given(st.floats(0, 1e8))
@example(5_182_200.0)  # 60 days to the hour
def test_durations_never_show_sixty(seconds):
    parts = words.duration(seconds).split()
    assert all(unit in ("ms", "d") for n, unit in itertools.pairwise(parts) if n == "60")
    assert parts[:2] != ["24", "h"]
    assert parts[:2] != ["1000", "ms"]
