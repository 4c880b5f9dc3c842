"""Simulations with robust rules over masking sessions: against numpy, under attack, with masks."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import task_seed
from fedloom.simulation.training import attacks
from fedloom.simulation.training.simulator import Simulation
from fedloom.strategies.masking.sessions import session_sizes, sum_lines
from support.experiments import Nudge, experiment, population

SIZES = tuple(np.random.default_rng(1).integers(8, 20, 24).tolist())
MASKING = {"group": 4, "min_group": 3, "precision": 1e-3}
OVER = {"name": "median", "over": "sessions"}


def made(**settings):
    given = {"aggregation": OVER, "masking": MASKING, "max_abs": 1.0, "weighting": "uniform",
             "goal": 22, "rounds": 1, "data": population(SIZES), **settings}  # fmt: skip
    goal = given.pop("goal")
    return experiment(**given, cohort={"goal": goal, "quorum": goal})


def run(**settings):
    simulation = Simulation(made(**settings))
    try:
        return list(simulation.rounds()), simulation
    finally:
        simulation.close()


def moved(simulation):
    before = {n: v.numpy() for n, v in simulation.experiment.model().state_dict().items()}
    return {name: simulation.params[name] - before[name] for name in before}


@pytest.mark.parametrize(
    ("rule", "by_numpy"),
    [
        ({"name": "median"}, np.median),
        ({"name": "trimmed_mean", "fraction": 0.2}, lambda means: np.sort(means)[1:-1].mean()),
    ],
)
def test_the_model_moves_by_the_rule_over_session_means(rule, by_numpy):
    """Each client adds its number / 64 to all parameters; seeds of tasks draw the sessions."""
    data = replace(population(SIZES), held_out_shards=None)
    records, simulation = run(client=Nudge, data=data, aggregation={**rule, "over": "sessions"},
                              seed=5)  # fmt: skip
    names, spec = simulation.experiment.population.names, simulation.experiment.spec
    assert records[0].accepted == 22
    found = {round(float(value), 6) for each in moved(simulation).values() for value in each.flat}
    wanted = set()
    for left_out in [(a, b) for a in range(24) for b in range(a)]:  # whoever was not drawn
        chosen = [name for place, name in enumerate(names) if place not in left_out]
        chosen.sort(key=lambda name: task_seed(spec.seed, 1, name))
        numbers = [int(name.rpartition("-")[2]) / 64 for name in chosen]
        stops = np.cumsum(session_sizes(22, 4))
        assert stops.tolist() == [4, 8, 12, 16, 19, 22]
        wanted.add(round(float(by_numpy([m.mean() for m in np.split(numbers, stops[:-1])])), 6))
    assert any(all(abs(value - each) < 1e-5 for value in found) for each in wanted)


def test_two_liars_spoil_two_sessions_and_not_the_model():
    """Of six; the mean of the same updates is spoiled."""
    attack = attacks.attack({"name": "sign_flip", "fraction": 0.09, "factor": 30.0})
    common = {"goal": 24, "max_abs": 64.0, "attack": attack, "rounds": 3}
    off, good = {}, run(**{**common, "attack": None})[1].params
    for name, over in (("median", OVER), ("mean", {"name": "mean"})):
        _, simulation = run(**common, aggregation=over)
        assert len(simulation.experiment.attackers()) == 2
        off[name] = max(float(np.abs(simulation.params[n] - good[n]).max()) for n in good)
    assert off["median"] < off["mean"] / 3


@pytest.mark.long
def test_masks_and_workers_change_no_bit():
    _, plain = run(rounds=2, kernel="resident")
    assert run(rounds=2, kernel="resident", workers=2)[1].digest() == plain.digest()
    full = {**MASKING, "simulate": "full"}
    assert run(rounds=2, kernel="resident", masking=full)[1].digest() == plain.digest()


def test_centered_clipping_remembers_over_rounds(tmp_path):
    """A resumed simulation continues from the same centre."""
    rule = {"name": "centered_clipping", "over": "sessions"}
    _, whole = run(rounds=4, aggregation=rule)
    path = tmp_path / "checkpoint.safetensors"
    for resume in (False, True):
        simulation = Simulation(made(rounds=4, aggregation=rule), path, resume=resume)
        for record in simulation.rounds():
            if not resume and record.round == 2:
                simulation.save()
                break
        digest = simulation.digest()
        simulation.close()
    assert digest == whole.digest()


def test_what_it_withstands_is_shown():
    spoiled = "each liar spoils all of its session"
    lines = sum_lines(made().spec.sum_facts())
    assert lines[-1] == f"robust: median over sessions: for liars in up to 2 of 6; {spoiled}"
    clipped = made(aggregation={"name": "centered_clipping", "over": "sessions"})
    assert "none is left out, long ones are cut" in sum_lines(clipped.spec.sum_facts())[-1]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"masking": None}, r"Expected \[masking\] with aggregation\.over"),
        ({"aggregation": {"name": "geometric_median", "over": "sessions"}}, "one of median, trim"),
        ({"aggregation": {"name": "mean", "over": "sessions"}}, "leave out aggregation.over"),
        ({"aggregation": {"name": "median", "over": "clients"}}, r"aggregation\.over"),
        ({"aggregation": {"name": "median"}}, 'set aggregation.over = "sessions"'),
        ({"masking": {**MASKING, "group": 12}}, "at least 3 sessions .*quorum to 25"),
        (
            {"aggregation": {"name": "trimmed_mean", "fraction": 0.1, "over": "sessions"}},
            "at least 10 sessions",
        ),
        (
            {"train": {"epochs": 1, "learning_rate": 0.1, "widths": [1.0, 0.5]}},
            "no train.widths with aggregation.over = sessions with .masking.",
        ),
        (
            {"privacy": {"mechanism": "distributed", "clip": 1.0, "noise_multiplier": 1.0,
                         "delta": 1e-5}, "masking": {"group": 4, "min_group": 3}},
            r"aggregation mean with \[privacy\], got median",
        ),
        ({"strategy": {"name": "scaffold", "clients": 24}}, "client rule that sends only its"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(change, match):
    with pytest.raises(UsageError, match=match):
        made(**change)
