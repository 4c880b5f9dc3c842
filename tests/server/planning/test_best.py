"""A run's best model from its committed rounds, and the runs that can have none."""

from types import SimpleNamespace

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import BestModel, RoundKind
from fedloom.server.planning import best as best_models
from fedloom.server.planning.advance import advance
from fedloom.server.planning.round_result import ClientMetrics, ReportedMetrics, RoundResult
from fedloom.server.planning.spec import parse
from support.run_rounds import TRAIN, result_of, setup_of, start

RUN = {"train": TRAIN, "rounds": 4, "cohort": {"goal": 1}}


def row(number, kind, **values):
    return SimpleNamespace(number=number, kind=kind, evaluation={"values": values})


def test_an_evaluation_belongs_to_the_model_from_which_its_round_started():
    """A training round measures the model of the last training round, whatever came between."""
    spec = parse({**RUN, "best": {"metric": "accuracy", "patience": 9}})
    rows = [
        row(1, "train", accuracy=0.5), row(4, "train", accuracy=0.75),
        row(5, "train", accuracy=0.5), row(6, "evaluate", accuracy=1.0),
    ]  # fmt: skip
    made = [best_models.look_back(spec, rows[:n]) for n in range(5)]
    assert [(best.newest, best.round, best.stale) for best in made] == [
        (0, None, 0), (1, 0, 0), (4, 1, 0), (5, 1, 1), (5, 5, 0),
    ]  # fmt: skip
    assert best_models.mark(spec, made[-1]) == {
        "metric": "accuracy", "mode": "max", "round": 5, "value": 1.0, "measured_in": 6,
        "stale": 0, "patience": 9,
    }  # fmt: skip


def test_training_rounds_count_only_where_they_evaluate():
    """With "after" they measure nothing, which is not a missing metric."""
    spec = parse({**RUN, "evaluate": "after"})
    rows = [row(1, "train"), row(2, "evaluate", loss=1.0), row(3, "train")]
    best = best_models.look_back(spec, rows)
    assert best == BestModel(newest=3, round=1, value=1.0, measured_in=2, stale=0)


def test_there_is_no_mark_before_the_first_evaluation():
    """Afterwards one tells of a metric that is never measured."""
    spec = parse({**RUN, "best": {"metric": "acc", "mode": "max"}})
    assert best_models.mark(spec, best_models.first_best(spec)) is None
    found = best_models.mark(spec, best_models.look_back(spec, [row(1, "train", loss=1.0)]))
    assert (found["round"], found["value"], found["stale"]) == (None, None, 1)


def test_advance_judges_the_weighted_and_capped_mean():
    """The same number as in the round's metrics: a client's claim weighs at most max_weight."""
    setup = setup_of(max_weight=100.0, rounds=9)
    state = start(setup)
    claims = [(1 << 40, 0.25), (100, 0.75)]
    reports = [
        ReportedMetrics(
            client=f"c{n}", evaluation=ClientMetrics(num_examples=n, values={"loss": v})
        )
        for n, v in claims
    ]
    trained = result_of(setup, [1.0])
    result = RoundResult(
        number=1, kind=RoundKind.TRAIN, reports=trained.reports, total=trained.total,
        metrics=reports,
    )  # fmt: skip
    after = advance(setup, state, result)
    assert after.metrics.evaluation["values"] == {"loss": 0.5}
    assert after.state.best == BestModel(newest=1, round=0, value=0.5, measured_in=1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"evaluate": False}, 'evaluate = true or "after" with [best], got false'),
        ({"evaluate_only": True}, "got evaluate_only = true, which makes no models"),
        (
            {"cohort": {"goal": 2, "mode": "buffered", "concurrency": 4}},
            "evaluate models of several rounds",
        ),
        (
            {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}},
            "a private run has no metrics",
        ),
        ({"metrics": {"mean": False}}, "metrics.enabled and metrics.mean = true with [best]"),
        ({"metrics": {"enabled": False}}, "metrics.enabled and metrics.mean = true with [best]"),
        ({"best": {"metric": "spread"}}, "Expected best.mode"),
        ({"best": {"patience": 1.5}}, "best.patience"),
        ({"best": {"patiense": 1}}, "patience"),
        ({"flower": {"server_app": "a"}, "train": {}, "cohort": {}}, "Expected no best"),
    ],
)
def test_a_run_that_can_have_no_best_model_is_refused_with_the_table(values, said):
    """Without the table such a run is as before, and has none."""
    private = values.get("privacy")
    run = {**RUN, **values}
    if "flower" in values:
        run = {"flower": values["flower"]}
    with pytest.raises(UsageError) as error:
        parse({"best": {"patience": 3}, **run})
    assert said in str(error.value)
    if "best" in values:
        return
    spec = parse(run)
    assert spec.best_settings() is None
    assert spec.run_config().best is None
    assert best_models.look_back(spec, [row(1, "train", loss=1.0)]) is None
    assert private is None or not spec.evaluate


def test_every_other_run_marks_the_model_of_the_least_loss():
    """Without the table, and without an early end."""
    settings = parse(RUN).best_settings()
    assert (settings.metric, settings.mode, settings.min_delta, settings.patience) == (
        "loss", "min", 0.0, 0,
    )  # fmt: skip
