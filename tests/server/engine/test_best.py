"""The best model of a run and its early end, against a plain scan over lists of integers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import (
    BestModel,
    BestSettings,
    Finish,
    OpenRound,
    Pause,
    Resume,
    RollBack,
    RolledBack,
    RoundAbandoned,
    RoundCommitted,
    RoundKind,
    Run,
    RunConfig,
    RunState,
    Started,
    judged,
)

TRAIN, EVALUATE = RoundKind.TRAIN, RoundKind.EVALUATE
LOSS = BestSettings()
SCALE = 8
"""Values are multiples of 1 / SCALE, which floats hold exactly; the oracle counts in integers."""

BAD = ("missing", math.nan, math.inf, -math.inf)
measured = st.one_of(st.integers(-12, 12), st.sampled_from(BAD))


def scan(values, *, rising, min_delta, patience):
    """The oracle: place of the best value, and the place after which a run ends; None for none.

    As Keras describes `EarlyStopping`: `wait` counts evaluations that did not improve on the best
    by more than min_delta. Only a value that is missing differs: it counts.
    """
    best, place, wait = None, None, 0
    for now, value in enumerate(values):
        wait += 1
        if isinstance(value, int):
            gain = None if best is None else (value - best if rising else best - value)
            if gain is None or gain > min_delta:
                best, place, wait = value, now, 0
        if patience and wait == patience:
            return place, now
    return place, None


def summary(name, value):
    if value == "missing":
        return {"other": 1.0}
    return {name: value / SCALE if isinstance(value, int) else value, "other": 1.0}


def play(run, evaluate, values, settings):
    """Run to the end; `values` are what the clients measure of models 0, 1, …, in order.

    Returns the best model, and the values that were used.
    """
    values, used, best = iter(values), [], BestModel()
    effects = run.handle(Started())
    while not isinstance(effects[0], Finish):
        [opened] = effects
        number, kind = opened.number, opened.kind
        trains = kind is TRAIN
        evaluates = not trains or evaluate is True
        found = {}
        if evaluates:
            used.append(next(values))
            found = summary(settings.metric, used[-1])
        best = judged(settings, best, number, evaluates=evaluates, trains=trains, values=found)
        effects = run.handle(RoundCommitted(kind, best))
    return best, used


@given(
    values=st.lists(measured, min_size=12, max_size=12),
    rising=st.booleans(),
    min_delta=st.integers(0, 4),
    patience=st.integers(0, 5),
    evaluate=st.sampled_from([True, "after"]),
)
def test_best_and_last_round_are_those_of_a_scan(values, rising, min_delta, patience, evaluate):
    """For evaluations in training rounds, and in rounds of their own."""
    settings = BestSettings(
        metric="score",
        mode="max" if rising else "min",
        min_delta=min_delta / SCALE,
        patience=patience,
    )
    rounds = 6
    config = RunConfig(
        rounds=rounds, evaluate_last=True, evaluate_each=evaluate == "after", best=settings
    )
    run = Run(config)
    best, used = play(run, evaluate, values, settings)
    # With true, round n measures model n - 1, and a last round model 6. With "after", rounds 2, 4,
    # … measure the models of rounds 1, 3, ….
    total = rounds + 1 if evaluate is True else rounds
    place, end = scan(values[:total], rising=rising, min_delta=min_delta, patience=patience)
    assert len(used) == (total if end is None else end + 1)
    if place is None:
        assert (best.round, best.value, best.measured_in) == (None, None, None)
    else:
        model = place if evaluate is True else 2 * place + 1
        expected = (model, values[place] / SCALE, model + 1)
        assert (best.round, best.value, best.measured_in) == expected
    assert best.stale == len(used) - 1 - (-1 if place is None else place)
    assert run.state is RunState.FINISHED
    assert bool(run.reason) == (end is not None and end < total - 1)


def after(values, settings=LOSS, best=BestModel()):  # noqa: B008 - frozen
    for number, value in enumerate(values, best.newest + 1):
        best = judged(
            settings, best, number, evaluates=True, trains=True, values=summary("loss", value)
        )
    return best


def test_ties_keep_the_earlier_model():
    """An equal value is no improvement, and counts towards the patience."""
    assert (after([5, 3, 3, 3]).round, after([5, 3, 3, 3]).stale) == (1, 2)


def test_a_gain_of_min_delta_is_none():
    """It must be larger, and is computed exactly: float64 cannot hold the second difference."""
    settings = BestSettings(min_delta=0.5)
    assert after([8, 4], settings).round == 0
    assert after([8, 3], settings).round == 1
    huge = BestModel(newest=1, round=0, value=1e308)
    down = judged(
        BestSettings(min_delta=1e308), huge, 2, evaluates=True, trains=True, values={"loss": -1e308}
    )
    assert (down.round, down.value) == (1, -1e308)
    near = BestModel(newest=1, round=0, value=1.0)
    for value, better in ((1.0 - 2**-53, True), (1.0, False)):
        got = judged(LOSS, near, 2, evaluates=True, trains=True, values={"loss": value})
        assert (got.round == 1) is better


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_metric_is_never_the_best_and_counts(bad):
    """As the first value, and after a good one; -inf would be the least loss."""
    assert after([bad]) == BestModel(newest=1, stale=1)
    assert after([4, bad]) == BestModel(newest=2, round=0, value=0.5, measured_in=1, stale=1)


@pytest.mark.parametrize(
    ("values", "settings", "reason"),
    [
        ([4, 4], {"patience": 1}, "loss has not improved on 0.5 (round 0) in 1 evaluation"),
        (
            [4, 3, 3],
            {"patience": 2, "min_delta": 0.25},
            "loss has not improved by more than 0.25 on 0.5 (round 0) in 2 evaluations",
        ),
        (["missing"] * 3, {"patience": 3}, "loss was missing or not finite in 3 evaluations"),
    ],
)
def test_the_reason_names_the_best_value_its_round_and_the_evaluations(values, settings, reason):
    """A run that ends early finishes; it has not failed."""
    made = BestSettings(**settings)
    run = Run(RunConfig(rounds=9, best=made))
    play(run, True, values, made)
    assert (run.state, run.reason) == (RunState.FINISHED, reason)


def stalled_at(count):
    return BestModel(newest=3, round=1, value=0.5, measured_in=2, stale=count)


def opened():
    run = Run(RunConfig(rounds=9, best=BestSettings(patience=2)))
    run.handle(Started())
    return run


def test_a_stalled_run_ends_in_a_pause_and_not_after_an_abandoned_round():
    """An abandoned round evaluates nothing; a committed one ends the run even while it pauses."""
    run = opened()
    assert run.handle(RoundCommitted(TRAIN, stalled_at(1))) == [OpenRound(2, TRAIN)]
    assert run.handle(RoundAbandoned("quorum")) == [OpenRound(3, TRAIN)]
    run.handle(Pause())
    assert run.handle(RoundCommitted(TRAIN, stalled_at(2))) == [Finish()]
    assert run.state is RunState.FINISHED
    assert run.reason.startswith("loss has not improved")


def test_a_restored_run_that_stalled_ends_at_once_with_the_same_reason():
    """The server was killed after the commit, before the run's state was stored."""
    run = opened()
    run.handle(RoundCommitted(TRAIN, stalled_at(2)))
    again = Run(run.config, progress=run.progress)
    assert again.handle(Started()) == [Finish()]
    assert (again.state, again.reason) == (run.state, run.reason)


def test_a_rollback_takes_back_the_best_and_the_patience():
    """A closing round commits within the rollback; the run continues from what is left."""
    run = opened()
    run.handle(RollBack("back"))
    assert run.handle(RoundCommitted(TRAIN, stalled_at(2))) == []
    assert run.handle(RolledBack(0, BestModel())) == [OpenRound(2, TRAIN)]
    assert run.progress.best == BestModel()


def test_a_failed_rollback_keeps_the_best():
    """Nothing changed: the run ends as it would have."""
    run = opened()
    run.handle(RollBack("back"))
    run.handle(RoundCommitted(TRAIN, stalled_at(2)))
    assert run.handle(RolledBack(None)) == [Finish()]


def test_a_paused_run_resumes_with_its_patience():
    """A pause is no evaluation."""
    run = opened()
    run.handle(RoundCommitted(TRAIN, stalled_at(1)))
    run.handle(Pause())
    run.handle(Resume())
    assert run.progress.best == stalled_at(1)
    assert run.handle(RoundCommitted(TRAIN, stalled_at(2))) == [Finish()]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": "spread"}, 'Expected best.mode with best.metric = "spread", got none'),
        ({"metric": ""}, "Expected best.metric as the name of a metric, got an empty text"),
        ({"min_delta": -0.1}, "Expected best.min_delta >= 0 and finite, got -0.1"),
        ({"min_delta": math.inf}, "got inf"),
        ({"patience": -1}, "Expected best.patience >= 0 evaluations, got -1"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(settings, said):
    """With what was expected and what came."""
    with pytest.raises(UsageError) as error:
        BestSettings(**settings)
    assert said in str(error.value)


def test_the_mode_follows_from_known_metrics():
    """It can be set for any."""
    assert BestSettings().mode == "min"
    assert BestSettings(metric="accuracy").mode == "max"
    assert BestSettings(metric="accuracy", mode="min").mode == "min"
    assert BestSettings(metric="f1", mode="max").mode == "max"
