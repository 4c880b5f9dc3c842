"""Robust rules and attacks in simulations: reproducible bits, and refusals."""

from pathlib import Path

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.training import attacks
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.wire.harness import over_the_wire
from support.experiments import Nudge, experiment

EVERYONE = {"cohort": {"goal": 6, "quorum": 6}}
TABLES = [
    {"name": "median"},
    {"name": "multi_krum", "num_byzantine": 1},
    {"name": "centered_clipping"},
    {"name": "geometric_median"},
]
IDS = [table["name"] for table in TABLES]


def digest(**settings):
    """The digest of the last model."""
    return simulate(experiment(**EVERYONE, **settings), show=False).digest


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES, ids=IDS)
def test_any_number_of_workers_gives_the_same_bits(table):
    assert digest(workers=1, aggregation=table) == digest(workers=3, aggregation=table)


def test_a_resumed_simulation_ends_with_the_same_bits(tmp_path):
    described = experiment(rounds=4, aggregation={"name": "centered_clipping"}, **EVERYONE)
    whole = Simulation(described)
    list(whole.rounds())
    whole.close()
    first = Simulation(described, tmp_path / "checkpoint")
    rounds = first.rounds()
    next(rounds)
    next(rounds)
    first.save()
    first.close()
    second = Simulation(described, tmp_path / "checkpoint", resume=True)
    list(second.rounds())
    second.close()
    assert second.digest() == whole.digest()


def test_files_of_updates_are_deleted_after_each_round():
    """The folder is deleted at the end of the simulation."""
    simulation = Simulation(experiment(aggregation={"name": "median"}, **EVERYONE))
    folder = Path(simulation._spool.folder)
    for _ in simulation.rounds():
        assert list(folder.iterdir()) == []
    simulation.close()
    assert not folder.exists()


def test_a_rule_without_the_updates_it_needs_abandons_the_round():
    described = experiment(
        rounds=2,
        goal=2,
        seed=3,
        aggregation={"name": "fltrust", "trusted": "client-000"},
        cohort={"goal": 2, "quorum": 2},
    )
    result = simulate(described, show=False)
    failed = [record for record in result.records if record.state == "abandoned"]
    assert failed
    assert "trusted client 'client-000' for fltrust" in failed[0].reason


def test_ray_is_refused_with_robust_rules():
    with pytest.raises(UsageError, match=r'backend = "local", not "ray": the aggregation median'):
        simulate(experiment(backend="ray", aggregation={"name": "median"}), show=False)


# ---- attacks -------------------------------------------------------------------------------------


def nudged(attack, names=6, **settings):
    """One round in which client i moves every parameter by i / 64, without and with an attack."""
    described = experiment(
        client=Nudge, rounds=1, attack=attack, weighting="uniform", **EVERYONE, **settings
    )
    simulation = Simulation(described)
    before = {name: array.copy() for name, array in simulation.params.items()}
    list(simulation.rounds())
    simulation.close()
    moves = {name: simulation.params[name] - before[name] for name in before}
    values = np.concatenate([move.reshape(-1) for move in moves.values()])
    np.testing.assert_allclose(values, values[0], atol=2e-6)
    return values[0] * 64, sorted(described.attackers())


def test_sign_flip_and_scale_by_hand():
    """Two of six attack: the mean of 0..5 with their moves times -3, or times 100."""
    for build, factor in ((attacks.SignFlip, -3.0), (attacks.Scale, 100.0)):
        found, liars = nudged(build(fraction=0.3, factor=abs(factor)))
        assert len(liars) == 2
        wanted = sum(n * (factor if n in liars else 1) for n in range(6)) / 6
        assert found == pytest.approx(wanted, abs=1e-3)


def test_a_little_is_enough_by_hand():
    """The two send their mean minus z deviations, the others their own updates."""
    found, liars = nudged(attacks.ALittleIsEnough(fraction=0.3, z=1.5))
    sent = np.mean(liars) - 1.5 * np.std(liars)
    wanted = (sum(n for n in range(6) if n not in liars) + 2 * sent) / 6
    assert found == pytest.approx(wanted, abs=1e-3)
    median, _ = nudged(attacks.ALittleIsEnough(fraction=0.3, z=1.5), aggregation={"name": "median"})
    rows = [n for n in range(6) if n not in liars] + [sent, sent]
    assert median == pytest.approx(np.median(rows), abs=1e-3)


def test_z_max_is_the_papers():
    """50 workers of which 24 % attack: Φ(z) = 24/38, so z is about 0.34."""
    assert attacks.z_max(50, 12) == pytest.approx(0.336, abs=1e-3)
    assert attacks.z_max(3, 1) == 0.0
    assert attacks.z_max(10, 5) == pytest.approx(0.842, abs=1e-3)


def test_attackers_are_drawn_by_the_seed_and_never_trusted_clients():
    names = [f"c{number}" for number in range(10)]
    how = attacks.SignFlip(fraction=0.5, spared=("c3", "c4"))
    assert how.attackers(names, 1) == how.attackers(names, 1)
    drawn = [how.attackers(names, seed) for seed in range(30)]
    assert len(set(drawn)) > 5
    assert all(len(liars) == 5 and not liars & {3, 4} for liars in drawn)
    assert attacks.SignFlip(fraction=0).attackers(names, 0) == frozenset()


def test_a_fraction_of_zero_has_no_attackers():
    """The bits are those of an honest run; with colluding attacks up to rounding."""
    honest = digest(aggregation={"name": "median"})
    for build in (attacks.SignFlip, attacks.ALittleIsEnough):
        assert digest(aggregation={"name": "median"}, attack=build(fraction=0)) == honest


def test_colluding_is_the_same_for_any_workers():
    how = attacks.ALittleIsEnough(fraction=0.34)
    for table in ({"name": "mean"}, {"name": "median"}):
        digests = {digest(workers=n, attack=how, aggregation=table) for n in (1, 2)}
        assert len(digests) == 1


DIGITS = {
    "rounds": 1,
    "cohort": {"goal": 4},
    "train": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1},
    "data": {"source": "digits", "clients": 8},
    "model": {"name": "2nn"},
}


def test_an_attack_has_a_table():
    table = {"name": "sign_flip", "fraction": 0.25, "factor": 4.0, "spared": ["client-000"]}
    found = config.load({**DIGITS, "attack": table})
    assert found.attack == attacks.SignFlip(fraction=0.25, factor=4.0, spared=("client-000",))
    assert len(found.attackers()) == 2
    assert config.load(DIGITS).attack is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "flip", "fraction": 0.1}, r"an attack, got 'flip'. Did you mean 'sign_flip'"),
        ({"name": "scale"}, r"Missing setting attack\.fraction of scale"),
        ({"name": "scale", "fraction": 0.1, "z": 1}, r"'attack\.z' of scale"),
        ({"name": "scale", "fraction": 1.0}, "fraction >= 0 and < 1"),
        ({"name": "scale", "fraction": 0.1, "factor": 0}, "factor > 0"),
        (
            {"name": "scale", "fraction": 0.1, "spared": ["x"]},
            r"attack\.spared names an unknown client",
        ),
    ],
)
def test_a_bad_table_is_refused(table, message):
    with pytest.raises(UsageError, match=message):
        config.load({**DIGITS, "attack": table})


def test_attacks_are_for_simulations():
    described = experiment(attack=attacks.Scale(fraction=0.3), kernel="resident")
    with pytest.raises(UsageError, match=r"Remove \[attack\]: over the wire"):
        over_the_wire(described, show=False)


@pytest.mark.long
def test_a_limit_of_an_aggregation_is_a_note_of_its_rounds():
    """A simulation and a server write the same one."""
    described = experiment(
        rounds=1,
        kernel="resident",
        aggregation={"name": "geometric_median", "tolerance": 1e-15, "iterations": 1},
        **EVERYONE,
    )
    (simulated,) = [r for r in simulate(described, show=False).records if r.kind == "train"]
    (served,) = [r for r in over_the_wire(described, show=False).records if r.kind == "train"]
    assert "geometric_median stopped after 1 iterations" in simulated.reason
    assert (served.state, served.reason) == ("committed", simulated.reason)
