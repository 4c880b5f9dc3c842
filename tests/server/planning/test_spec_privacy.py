"""[privacy] in a run's specification: its effects and its incompatibilities."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates.header import check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, TensorSpec

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
            "cohort.quorum",
            "poisson",
        ),
        (
            {"privacy": {"sampling": "poisson", "population": 9}},
            "cohort.goal",
            "privacy.population",
        ),
        (
            {
                "privacy": {"sampling": "without_replacement", "population": 99},
                "cohort": {"quorum": 2},
            },
            "cohort.quorum",
            "without_replacement",
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
    assert "budget is spent" in plan.stopped(rounds)


def test_abandoned_rounds_cost_epsilon_with_local_noise():
    """The server has seen their updates; so a run opens no more rounds than its claim has."""
    local = {"mechanism": "local"}
    for mechanism, costs in (({}, False), (local, True)):
        spec = parse(changed(max_abs=1e6, privacy=mechanism))
        plan, config = spec.privacy_plan(), spec.run_config()
        assert config.most_opened == (config.rounds if costs else None)
        assert plan.released(3, 5) == (5 if costs else 3)
        assert plan.spent(3, 5)["epsilon"] == plan.epsilon(5 if costs else 3)
        assert plan.released(config.rounds, config.rounds + 1) == config.rounds  # an evaluation
        assert ("abandoned ones cost" in plan.stopped(config.rounds - 1)) is costs


@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
def test_sampled_rounds_commit_with_any_number_of_updates(sampling):
    """They wait for the population, and are never abandoned for too few updates."""
    spec = parse(changed(privacy={"sampling": sampling, "population": 400}))
    config = spec.round_config()
    assert (config.quorum, config.candidates, config.replace) == (0, 400, False)
    assert config.by_coins == (sampling == "poisson")


def test_poisson_rounds_may_open_with_fewer_than_the_population():
    """A coin has the same probability then; a subset of one size would not."""
    poisson = {"sampling": "poisson", "population": 400}
    spec = parse(changed(privacy=poisson, cohort={"candidates": 300}))
    assert spec.round_config().needed == 300
    fixed = {"sampling": "without_replacement", "population": 400}
    spec = parse(changed(privacy=fixed, cohort={"candidates": 300}))
    assert spec.round_config().needed == 400


def test_a_sum_has_room_for_every_drawn_client():
    """A full sum would displace a drawn client; the grid of usual noise is no coarser for it."""
    table = {"sampling": "poisson", "population": 400}
    assert parse(changed(privacy=table)).capacity >= 2**20
    assert parse(changed(privacy=table)).exponent() == parse(RUN).exponent()


def test_adding_or_removing_a_client_changes_no_other_draw():
    """Of hundreds of clients that are present, each keeps its coin in every round."""
    from support.streams import hashed

    spec = parse(changed(privacy={"sampling": "poisson", "population": 100}))
    names = [f"client-{number}" for number in range(300)]
    for number in range(1, 30):
        select = spec.select(number, RoundKind.TRAIN, None, hashed("coins"))
        all_ = set(select(names, len(names)))
        for left_out in (names[:1], names[7:50], names[1::2]):
            rest = sorted(set(names) - set(left_out))
            assert set(select(rest, len(rest))) == all_ - set(left_out)
    assert len({frozenset(spec.select(n, RoundKind.TRAIN, None, hashed("coins"))(names, 300))
                for n in range(1, 30)}) == 29  # fmt: skip


NORMALISED = Manifest(
    dtypes={"w": "F32", "n.running_mean": "F16", "n.running_var": "BF16", "n.batches": "I64"},
    specs={
        "w": TensorSpec(shape=(2, 3), dtype=np.dtype(np.float32)),
        "n.running_mean": TensorSpec(shape=(3,), dtype=np.dtype(np.float16)),
        "n.running_var": TensorSpec(shape=(3,), dtype=np.dtype(np.float32)),
        "n.batches": TensorSpec(shape=(), dtype=np.dtype(np.int64)),
    },
    size_bytes=100,
)


def header_of(*tensors):
    header = fleet_pb2.UpdateHeader(weight=1.0, size_bytes=8)
    header.parts.extend(
        fleet_pb2.Part(group=DELTA, tensor=name, values=name, full=fleet_pb2.Full())
        for name in tensors
    )
    return header


def test_a_private_run_leaves_integers_as_they_are():
    """They are in no sum and in no noise, and an update that has one is refused."""
    spec = parse(RUN)
    floats = set(NORMALISED.specs) - {"n.batches"}
    assert {name for _, name in limits.sums(spec, NORMALISED)} == floats
    released = limits.release(spec, NORMALISED)
    assert set(released.specs) == floats
    assert released.size == 12
    accepted = limits.limits(spec, NORMALISED)
    assert len(check_header(header_of(*sorted(floats)), accepted, NORMALISED)) == 3
    with pytest.raises(Refusal, match=r"no values of 'n.batches' in a private run.*I64") as caught:
        check_header(header_of(*sorted(NORMALISED.specs)), accepted, NORMALISED)
    assert caught.value.code is Code.UNKNOWN_TENSOR
    public = parse({**RUN, "privacy": {}})
    assert {name for _, name in limits.sums(public, NORMALISED)} == set(NORMALISED.specs)


def test_a_model_of_integers_cannot_be_private():
    only = replace(NORMALISED, specs={"n.batches": NORMALISED.specs["n.batches"]})
    with pytest.raises(UsageError, match="floating-point tensors"):
        limits.sums(parse(RUN), only)


def test_batch_normalisation_is_advised_against():
    """With GroupNorm as the alternative; not where the devices keep it, or without privacy."""
    (text,) = limits.claim(parse(RUN), NORMALISED)["advice"]
    assert text.startswith("n is a batch normalisation")
    assert "GroupNorm" in text
    kept = parse({**RUN, "personal": {"name": "shared", "keep": ["n.*"]}})
    assert limits.claim(kept, NORMALISED)["advice"] == []
    assert limits.claim(parse({**RUN, "privacy": {}}), NORMALISED) is None
