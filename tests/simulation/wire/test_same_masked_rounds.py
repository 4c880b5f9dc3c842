"""A masked run ends with one model, simulated without masks and on a server with real agents."""

import pytest

from fedloom.simulation.training import masked_sum
from fedloom.simulation.training.simulator import Simulation
from support import parts
from support.deployment import Deployment
from support.experiments import experiment, population

ROUNDS = 2
TRAIN = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1}
MASKING = {"group": 6, "min_group": 3, "phase_s": 30.0, "precision": 0.1}
FAIR = {"max_abs": 2.0, "weighting": "uniform"}
CASES = {
    "32 bits": {**FAIR, "masking": MASKING},
    "64 bits and weights": {
        "max_abs": 2.0, "max_weight": 64.0, "masking": {**MASKING, "sum_bits": 64},
    },
    "24 bits, rounded stochastically, two sessions": {
        **FAIR, "masking": {**MASKING, "group": 3, "sum_bits": 24},
    },
    "scaffold": {
        **FAIR, "strategy": {"name": "scaffold", "clients": 6}, "masking": MASKING, "rounds": 3,
    },
    "fednova": {
        "max_abs": 64.0, "max_weight": 64.0, "strategy": {"name": "fednova"},
        "masking": {**MASKING, "sum_bits": 64},
    },
    "qfedavg": {
        "max_abs": 64.0, "weighting": "uniform", "strategy": {"name": "qfedavg", "q": 1.0},
        "masking": {**MASKING, "sum_bits": 64},
    },
    "scaffold, three in a session, 24 bits": {
        **FAIR, "strategy": {"name": "scaffold", "clients": 6},
        "masking": {**MASKING, "group": 3, "sum_bits": 24},
    },
    # Once: devices mask no second update of one model.
    "evaluation alone": {**FAIR, "masking": MASKING, "evaluate_only": True, "rounds": 1},
    "a head": {
        **FAIR, "masking": MASKING,
        "train": {**TRAIN, "only": ["2.*"]},
    },
    "two widths of three": {
        **FAIR, "masking": MASKING, "train": {**TRAIN, "widths": [1.0, 0.5]},
    },
    "two widths of three, weights, 24 bits": {
        "max_abs": 1.0, "max_weight": 32.0, "masking": {**MASKING, "sum_bits": 24},
        "train": {**TRAIN, "widths": [0.5, 1.0]},
    },
    "one width of too few": {
        **FAIR, "masking": MASKING, "cohort": {"goal": 6, "quorum": 3, "deadline_s": 3600.0},
        "train": {**TRAIN, "widths": [1.0, 1.0, 0.75]},
    },
}  # fmt: skip
QUICK = ("32 bits", "two widths of three")


MANY = tuple(f"client-{number:03}" for number in range(10))
OVER = {
    "median": {"name": "median"},
    "trimmed mean": {"name": "trimmed_mean", "fraction": 0.34},
    "bounded norms, weights": {"name": "norm_bounding"},
    "clipping about the last round": {"name": "centered_clipping"},
}


async def started(folder, names):
    """A server, and agents whose owners accept sessions of three."""
    deployment = Deployment(folder, names)
    for name in names:
        (folder / name).mkdir()
        (folder / name / "policy.toml").write_text("[masking]\nmin_group = 3\n")
    await deployment.start()
    return deployment


@pytest.fixture(scope="module")
def deployment(runner, tmp_path_factory):
    deployment = runner.run(started(tmp_path_factory.mktemp("masked"), parts.NAMES))
    yield deployment
    runner.run(deployment.stop())


@pytest.fixture(scope="module")
def crowd(runner, tmp_path_factory):
    """Ten agents: three sessions."""
    deployment = runner.run(started(tmp_path_factory.mktemp("crowd"), MANY))
    yield deployment
    runner.run(deployment.stop())


def described(case):
    values = {
        "cohort": {"goal": 6, "quorum": 6, "deadline_s": 3600.0},
        "rounds": ROUNDS,
        "evaluate": True,
        "train": {"epochs": 2, "batch_size": 4, "learning_rate": 0.1},
        **CASES[case],
    }
    data = population(held_out=3, sizes=(13, 31, 17, 21, 9, 18))
    return experiment(data=data, kernel="resident", **values)


def simulated(made):
    simulation = Simulation(made)
    try:
        records = list(simulation.rounds())
        return simulation.digest(), records
    finally:
        simulation.close()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.long) for c in CASES]
)
def test_a_masked_simulation_and_deployment_end_with_the_same_model(case, deployment, runner):
    """Model, states of rounds, numbers of updates, metrics and bytes are the same."""
    made = described(case)
    digest, records = simulated(made)
    check(*runner.run(deployment.play(made)), digest, records)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("widths", [[1.0, 0.5], [0.25, 0.75]])
def test_masked_narrow_devices_end_with_the_model_of_an_unmasked_run(widths, deployment, runner):
    """Also where no device trains the whole model: some values are covered by none."""
    models = []
    for sums in ({"sum_bits": 64}, {"masking": {**MASKING, "sum_bits": 64}}):
        made = experiment(
            data=population(held_out=3, sizes=(13, 31, 17, 21, 9, 18)), kernel="resident",
            cohort={"goal": 6, "quorum": 6, "deadline_s": 3600.0}, rounds=ROUNDS,
            train={**TRAIN, "widths": widths}, **FAIR, **sums,
        )  # fmt: skip
        run, _ = runner.run(deployment.play(made))
        assert run.state == "finished", run.reason
        models.append(run.model)
    assert models[0] == models[1]


def check(run, rounds, digest, records):
    assert run.state == "finished", run.reason
    assert [r.state for r in rounds] == [r.state for r in records]
    assert [r.accepted for r in rounds] == [r.accepted for r in records]
    for mine, its in zip(rounds, records, strict=True):
        assert (mine.training or {}).get("values", {}) == its.training
        assert (mine.evaluation or {}).get("values", {}) == its.evaluation
        assert (mine.training or {}).get("num_examples", 0) == its.examples
        assert mine.summary["bytes_up"] == its.bytes_up > 0
        assert mine.summary["bytes_down"] == its.bytes_down
    assert run.model == digest


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("case", OVER)
def test_rules_over_the_same_sessions_end_with_the_same_model(case, crowd, runner, monkeypatch):
    """The nonces of devices draw the server's sessions; a simulation with these has its bits."""
    weighted = {"weighting": "examples", "max_weight": 64.0} if "weights" in case else {}
    made = experiment(
        data=population(held_out=3, sizes=(13, 31, 17, 21, 9, 18, 12, 25, 16, 11)),
        kernel="resident", aggregation=OVER[case] | {"over": "sessions"}, evaluate=True,
        rounds=ROUNDS, cohort={"goal": 10, "quorum": 10, "deadline_s": 3600.0},
        train={"epochs": 2, "batch_size": 4, "learning_rate": 0.1},
        **FAIR | weighted, masking=MASKING | {"group": 4},
    )  # fmt: skip
    run, rounds = runner.run(crowd.play(made))
    ledger = crowd.federation.ledger

    def as_there(task, names, jobs):
        job_of = {names[job.client]: job for job in jobs}
        return [
            [job_of[name]._replace(members=len(each.members)) for name in sorted(each.members)]
            for each in ledger.sessions(run.id, task.round)
        ]

    own, _ = simulated(made)
    monkeypatch.setattr(masked_sum, "sessions", as_there)
    check(run, rounds, *simulated(made))
    assert run.model != own  # who is with whom matters
