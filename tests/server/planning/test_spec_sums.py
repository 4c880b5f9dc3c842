"""Runs with narrow sums: what they accept, and refusals before a run starts."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse

RUN = {"cohort": {"goal": 10}, "train": {"epochs": 1, "learning_rate": 0.1}}
TIGHT = {"max_abs": 1.0, "weighting": "uniform"}
PRIVATE = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}

REFUSED = {
    "no precision": ({"sum_bits": 32}, r"precision with sum_bits = 32.*These bounds reach 16"),
    "default bounds": (
        {"sum_bits": 32, "precision": 1e-6},
        r"precision >= 16.*got 1e-06.*max_abs 1024 · max_weight 262144 · 84 updates.*max_weight",
    ),
    "precision beyond float64": ({**TIGHT, "sum_bits": 64, "precision": 1e-20}, "float64"),
    "weights of any size": (
        {"sum_bits": 24, "precision": 1e-3, "max_abs": 1.0, "weighting": "client"},
        'weighting = "examples", whose weights are at least 1',
    ),
    "precision 0": ({**TIGHT, "sum_bits": 32, "precision": 0.0}, "finite precision > 0"),
    "another width": ({**TIGHT, "sum_bits": 48, "precision": 1.0}, "sum_bits"),
    "exact sums": ({"precision": 1e-3}, "no precision with exact sums"),
    "a robust rule": (
        {**TIGHT, "sum_bits": 32, "precision": 1.0, "aggregation": {"name": "median"}},
        "aggregation median, which adds nothing up",
    ),
    "a quotient of means": (
        {**TIGHT, "sum_bits": 32, "precision": 1.0, "strategy": {"name": "fednova"}},
        "client rule fednova, whose means are divided",
    ),
    "privacy": (
        {"sum_bits": 32, "precision": 1.0, "privacy": PRIVATE},
        r"sum_bits = 64 or none with \[privacy\]",
    ),
    "precision of a private grid": (
        {"sum_bits": 64, "precision": 1.0, "privacy": PRIVATE},
        r"no precision with \[privacy\]",
    ),
    "more updates than bits": (
        {**TIGHT, "sum_bits": 16, "precision": 1.0, "cohort": {"goal": 40_000}},
        "fewer than 65534 updates in a sum of 16 bits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sums_that_a_run_cannot_keep_its_word_with_are_refused(name):
    changes, words = REFUSED[name]
    with pytest.raises(UsageError, match=words):
        parse({**RUN, **changes})


@pytest.mark.parametrize("bits", [16, 24, 32, 64])
def test_a_narrow_sum_has_a_grid_of_its_bits(bits):
    spec = parse({**RUN, **TIGHT, "sum_bits": bits, "precision": 0.01})
    assert spec.is_narrow
    assert spec.exponent() == bits - 2 - 7  # 84 updates of at most 1, below 2^7
    assert spec.grid().largest_error == pytest.approx(2.0 ** -(bits - 8), rel=1e-3)
    assert parse(spec.as_dict()) == spec


def test_runs_stored_before_there_was_a_precision_load():
    stored = {n: v for n, v in parse({**RUN, "sum_bits": 64}).as_dict().items() if n != "precision"}
    assert parse(stored).precision is None
    private = {**stored, "privacy": PRIVATE, "weighting": "uniform", "evaluate": False}
    assert parse(private | {"cohort": {"goal": 10, "replace": False}}).grid() is None


def test_a_buffer_counts_the_updates_that_are_admitted_with_its_goal():
    cohort = {"mode": "buffered", "goal": 4, "concurrency": 60}
    spec = parse({**RUN, **TIGHT, "sum_bits": 16, "precision": 0.01, "cohort": cohort})
    assert (spec.grid().updates, spec.exponent()) == (128, 7)
