"""The effect of a round on its run, computed by hand from the definitions."""

import numpy as np
import pytest

from fedloom.protocol.tensors.container import narrow, widen
from fedloom.server.engine import RoundKind
from fedloom.server.planning.advance import advance, clip, counts
from fedloom.server.planning.round_result import (
    ClientMetrics,
    ClientReport,
    ReportedMetrics,
    RoundResult,
    last_counted,
)
from fedloom.strategies import Partial, TooFewUpdatesError
from support.run_rounds import PRIVATE, TRAIN, result_of, setup_of, start


def test_the_next_model_is_the_weighted_mean_of_the_updates():
    """(1 · 0.5 + 3 · 0.25) / 4 = 0.3125, which float32 represents exactly."""
    setup = setup_of()
    after = advance(setup, start(setup, 1.0), result_of(setup, [0.5, 0.25], weights=[1, 3]))
    assert after.state.model["w"].tolist() == [1.3125] * 4
    assert after.state.held is after.state.model
    assert (after.state.trained, after.state.strategy.step) == (1, 1)
    assert after.difference is None


def test_the_schedule_steps_with_non_empty_rounds():
    """Warm-up over one round: half the step, then, after an empty round, the whole step."""
    schedule = {"name": "fedavg", "schedule": {"warmup_rounds": 1}}
    setup = setup_of(strategy=schedule)
    state, seen = start(setup), []
    for number, delta in enumerate([1.0, None, 1.0], 1):
        state = advance(setup, state, result_of(setup, [delta], number=number)).state
        seen.append((state.model["w"][0], state.trained, state.strategy.step))
    assert seen == [(0.5, 1, 1), (0.5, 2, 1), (1.5, 3, 2)]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"aggregation": {"name": "median"}, "weighting": "uniform"},
        {"compression": {"down": {"name": "int8"}}},
    ],
    ids=["sum", "each", "broadcast"],
)
def test_an_empty_round_leaves_everything_the_same_object(values):
    """Model, state and held model; the round still counts."""
    setup = setup_of(**values)
    before = start(setup)
    after = advance(setup, before, result_of(setup, [None, None]))
    assert after.state.model is before.model
    assert after.state.held is before.held
    assert after.state.strategy is before.strategy
    assert after.difference is None
    assert after.state.trained == 1
    assert after.metrics.training["values"] == {"loss": 0.5}


def test_an_empty_round_of_a_private_run_gets_its_noise():
    """It looks like a round whose updates cancelled out."""
    setup = setup_of(privacy=PRIVATE)
    before = start(setup)
    after = advance(setup, before, result_of(setup, [None, None]))
    assert np.count_nonzero(after.state.model["w"]) == 4
    assert (after.state.trained, after.state.strategy.step) == (1, 1)


@pytest.mark.parametrize("evaluate_only", [False, True])
def test_an_evaluation_changes_nothing_and_counts_in_evaluate_only_runs(evaluate_only):
    """Metrics are reported for every kind of round."""
    setup = setup_of(evaluate_only=evaluate_only, train={} if evaluate_only else TRAIN)
    before = start(setup)
    report = ClientReport(client="a", asked_in=1, has_tensors=False)
    evaluation = ClientMetrics(num_examples=5, values={"accuracy": 0.5})
    result = RoundResult(
        number=1,
        kind=RoundKind.EVALUATE,
        reports=[report],
        total=Partial({}, setup.spec.exponent()),
        metrics=iter([ReportedMetrics(client="a", evaluation=evaluation)]),
    )
    after = advance(setup, before, result)
    assert after.state.model is before.model
    assert after.state.trained == int(evaluate_only)
    assert counts(setup.spec, RoundKind.EVALUATE) == evaluate_only
    assert after.metrics.evaluation["values"] == {"accuracy": 0.5}


def test_too_few_updates_for_the_aggregation_are_an_error():
    """The caller abandons the round; its state does not change."""
    setup = setup_of(
        aggregation={"name": "krum", "num_byzantine": 0},
        weighting="uniform",
        cohort={"goal": 3, "quorum": 3},
    )
    before = start(setup)
    result = result_of(setup, [1.0])

    class One:
        specs = result.total.specs
        clients = ("a",)
        weights = np.ones(1)

    lacking = RoundResult(
        number=1, kind=RoundKind.TRAIN, reports=result.reports, total=result.total, updates=One()
    )
    with pytest.raises(TooFewUpdatesError):
        advance(setup, before, lacking)
    assert before.model["w"].tolist() == [0.0] * 4


def test_the_next_model_is_rounded_like_its_file():
    """bfloat16 has a mantissa of 8 bits: 1 + 2⁻⁹ is 1 in the file and in the next round."""
    setup = setup_of(dtype="BF16", compression={"down": {"name": "lossless"}})
    after = advance(setup, start(setup, 1.0), result_of(setup, [2.0**-9, 2.0**-9]))
    model = after.state.model["w"]
    np.testing.assert_array_equal(model, widen(narrow(model, "BF16"), "BF16"))
    assert model.tolist() == [1.0] * 4
    assert after.state.held["w"].tolist() == [1.0] * 4


def test_the_loss_of_encoding_is_part_of_the_next_difference():
    """Clients hold another model than the run's until later differences correct it."""
    setup = setup_of(compression={"down": {"name": "int8"}}, size=64)
    state, deltas = start(setup), np.linspace(-1, 1, 64)
    first = advance(setup, state, result_of(setup, [deltas]))
    lost = first.state.model["w"] - first.state.held["w"]
    assert 0 < np.abs(lost).max() < 0.02
    second = advance(setup, first.state, result_of(setup, [deltas], number=2))
    made = second.state.held["w"] - first.state.held["w"]
    np.testing.assert_allclose(made, deltas + lost, atol=0.02)


def test_clients_are_excluded_until_the_tree_ends():
    """Members of round 1 may not be in round 2; then a tree of two rounds is full."""
    settings = {**PRIVATE, "mechanism": "dp_ftrl", "restart_every": 2}
    setup = setup_of(privacy=settings)
    first = advance(setup, start(setup), result_of(setup, [1.0, 1.0])).state
    assert first.participations.excluded == {"a", "b"}
    second = advance(setup, first, result_of(setup, [None, None, 0.5], number=2)).state
    assert second.participations.excluded == frozenset()


def test_a_private_round_reports_its_budget_and_no_metrics():
    """After two rounds: epsilon of two."""
    setup = setup_of(privacy=PRIVATE)
    state = advance(setup, start(setup), result_of(setup, [1.0])).state
    metrics = advance(setup, state, result_of(setup, [1.0], number=2)).metrics
    assert (metrics.training, metrics.evaluation) == ({}, {})
    assert metrics.privacy == setup.privacy.spent(2, 2)


def test_the_clip_follows_the_quantile():
    """Both updates are within the clip, so it shrinks; without [privacy] there is none."""
    setup = setup_of(privacy={**PRIVATE, "clip_quantile": 0.1})
    state = start(setup)
    assert clip(setup, state.strategy) == 1.0
    after = advance(setup, state, result_of(setup, [0.0, 0.0])).state
    assert clip(setup, after.strategy) == float(after.strategy.slots["privacy"]["clip"])
    assert clip(setup, after.strategy) != 1.0
    assert clip(setup_of(), start(setup_of()).strategy) is None


def test_a_memory_counts_if_the_update_had_tensors():
    """Client b sent none: its memory is still that of the round before."""
    setup = setup_of()
    before = last_counted({}, result_of(setup, [1.0, 1.0], number=3).reports)
    after = last_counted(before, result_of(setup, [1.0, None], number=4).reports)
    assert (before, after) == ({"a": 3, "b": 3}, {"a": 4, "b": 3})


NARROW = {"sum_bits": 16, "precision": 0.01, "max_abs": 1.0, "weighting": "uniform"}


def test_a_round_says_how_many_values_its_sum_rounded_to_zero():
    """One of eight values is at most half a step of 2^-7; from 10 % on, with what to change."""
    setup = setup_of(**NARROW)
    one, none = np.float32([0.5, 0.5, 0.5, 0.001]), np.float32([0.5] * 4)
    after = advance(setup, start(setup), result_of(setup, [one, none]))
    assert after.metrics.underflow == 1 / 8
    assert after.note.startswith("12% of the values other than zero were rounded to zero")
    assert "lower max_abs" in after.note
    fewer = advance(setup, start(setup), result_of(setup, [one, none, none]))
    assert (fewer.metrics.underflow, fewer.note) == (1 / 12, "")


def test_no_round_tells_zeros_of_exact_or_private_sums():
    """A private run's count would reveal what its noise hides."""
    for settings in ({}, {"privacy": PRIVATE}):
        setup = setup_of(**settings)
        after = advance(setup, start(setup), result_of(setup, [1e-30, 0.5]))
        assert (after.metrics.underflow, after.note) == (None, "")
