"""[privacy] in a run's specification: its effects and its incompatibilities."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse

pytest.importorskip("dp_accounting")

TABLE = {"clip": 0.5, "noise_multiplier": 4.0, "delta": 1e-5}
RUN = {
    "rounds": 50,
    "cohort": {"goal": 20},
    "train": {"epochs": 1, "learning_rate": 0.1},
    "privacy": TABLE,
}


def changed(**tables):
    run = {**RUN, **{n: v for n, v in tables.items() if not isinstance(v, dict)}}
    for name, table in tables.items():
        if isinstance(table, dict):
            run[name] = {**RUN.get(name, {}), **table}
    return run


def test_a_private_run_weighs_uniformly_and_reports_no_metrics():
    """Required settings are the defaults, and its cohort is drawn once."""
    spec = parse(RUN)
    assert (spec.weighting, spec.evaluate) == ("uniform", False)
    assert not spec.round_config().replace
    assert parse(spec.as_dict()) == spec
    assert spec.privacy_plan().noise_multiplier == 4.0


@pytest.mark.parametrize(
    ("change", "first", "second"),
    [
        ({"weighting": "examples"}, "weighting", "privacy"),
        ({"weighting": "client"}, "weighting", "privacy"),
        ({"evaluate": True}, "evaluate = false", "privacy"),
        ({"privacy": {"clip": None}}, "clip", "number"),
        ({"privacy": {"clip": float("inf")}}, "clip", "finite"),
        ({"aggregation": {"name": "median"}, "cohort": {"quorum": 3}}, "median", "privacy"),
        ({"strategy": {"name": "fednova"}}, "fednova", "privacy"),
        ({"strategy": {"name": "scaffold", "clients": 20}}, "scaffold", "privacy"),
        ({"selection": {"name": "power_of_choice"}}, "power_of_choice", "privacy"),
        ({"compression": {"up": {"name": "int8"}}}, "int8", "privacy"),
        ({"cohort": {"over_selection": 1.3}}, "over_selection", "privacy"),
        ({"cohort": {"replace": True}}, "replace", "privacy"),
        ({"cohort": {"mode": "buffered", "concurrency": 4}}, "buffered", "privacy"),
        (
            {"privacy": {"sampling": "poisson", "population": 99}, "cohort": {"quorum": 2}},
            "quorum = 1",
            "poisson",
        ),
        (
            {"privacy": {"sampling": "poisson", "population": 9}},
            "cohort.goal",
            "privacy.population",
        ),
        ({"privacy": {"klip": 1.0}}, "'privacy.klip'", "did you mean 'clip'"),
        ({"privacy": {"mechanism": "local", "clip": 100.0}}, "max_abs", "local"),
    ],
)
def test_settings_that_break_the_claim_are_refused_with_both_names(change, first, second):
    """Before anything runs."""
    with pytest.raises(UsageError) as caught:
        parse(changed(**change))
    text = str(caught.value).lower()
    assert first.lower() in text, text
    assert second.lower() in text, text


def test_a_target_calibrates_the_noise_and_is_the_budget():
    """Epsilon after all rounds is at most the target and near it, and the run is not shortened."""
    table = {"clip": 0.5, "target_epsilon": 8.0, "delta": 1e-5}
    spec = parse({**RUN, "privacy": table})
    plan = spec.privacy_plan()
    assert 7.99 < plan.epsilon(50) <= 8.0
    assert spec.run_config().rounds == 50
    assert plan.claim()["budget"] == 8.0


def test_a_budget_limits_the_rounds():
    spec = parse(changed(privacy={"budget": 3.0}))
    plan = spec.privacy_plan()
    rounds = spec.run_config().rounds
    assert 0 < rounds < 50
    assert plan.epsilon(rounds) <= 3.0 < plan.epsilon(rounds + 1)
    assert "budget is spent" in plan.stopped()


def test_poisson_cohorts_are_binomial_and_wait_for_the_population():
    """A round opens only when the whole population is available."""
    from support.streams import hashed

    spec = parse(changed(privacy={"sampling": "poisson", "population": 400}))
    stream = hashed("coins")
    configs = [spec.cohort_config(number, stream) for number in range(1, 401)]
    goals = [config.goal for config in configs]
    assert abs(sum(goals) / 400 - 20) < 5 * (19 / 400) ** 0.5
    variance = sum((goal - 20) ** 2 for goal in goals) / 400
    assert 13 < variance < 26
    assert {config.candidates for config in configs} == {400}
    assert spec.cohort_config(7, stream) == spec.cohort_config(7, stream)
