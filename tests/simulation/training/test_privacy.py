"""Private experiments: reproducible bits, noise, clipping and budgets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.training.simulator import Simulation
from support.experiments import CLASSES, FEATURES, experiment, population

pytest.importorskip("dp_accounting")

TABLE = {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}
KINDS = {
    "fixed": {},
    "adaptive": {"clip_quantile": 0.5},
    "poisson": {"sampling": "poisson", "population": 6},
    "without_replacement": {"sampling": "without_replacement", "population": 6},
    "local": {"mechanism": "local"},
    "tree": {"mechanism": "dp_ftrl", "restart_every": 2},
    "banded": {"mechanism": "dp_bandmf", "separation": 2},
}


def private(kind="fixed", change=None, **settings):
    table = {**TABLE, **KINDS[kind], **(change or {})}
    settings = {"goal": 3, **settings} if kind in {"tree", "banded"} else settings
    return experiment(kernel="resident", privacy=table, **settings)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_gives_the_same_bits(kind):
    one = simulate(private(kind, rounds=3), show=False)
    two = simulate(private(kind, rounds=3, workers=2), show=False)
    assert one.digest == two.digest


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fixed", "adaptive", "poisson", "banded"])
def test_a_resumed_simulation_continues_with_the_same_noise(kind, tmp_path):
    """It ends with the same model as an uninterrupted one."""
    whole = simulate(private(kind, rounds=4), show=False)
    path = tmp_path / "checkpoint.safetensors"
    for resume in (False, True):
        simulation = Simulation(private(kind, rounds=4), path, resume=resume)
        for record in simulation.rounds():
            if not resume and record.round == 2:
                simulation.save()
                break
        digest = simulation.digest()
        simulation.close()
    assert digest == whole.digest


def test_updates_are_clipped_and_divided_by_the_goal():
    """With almost no noise a round moves the model by at most clip · cohort / goal."""
    described = private(change={"noise_multiplier": 1e-6, "clip": 0.01}, rounds=1)
    before = {n: t.numpy() for n, t in described.model().state_dict().items()}
    result = simulate(described, show=False)
    moved = np.sqrt(sum(np.sum((result.params[n] - before[n]) ** 2.0) for n in before))
    assert 0.5 * 0.01 < moved <= 0.01 * (1 + 1e-3)


def test_noise_has_the_claimed_deviation():
    """Changes of the model have the deviation z·C/goal per coordinate."""
    noisy = {"noise_multiplier": 50.0, "clip": 0.1}
    one = simulate(private(change=noisy, rounds=1), show=False)
    before = {n: t.numpy() for n, t in private().model().state_dict().items()}
    moves = np.concatenate([(one.params[n] - before[n]).ravel() for n in before])
    assert abs(moves.std() / (50.0 * 0.1 / 4) - 1) < 5 / np.sqrt(2 * moves.size)


def test_records_have_epsilon_and_no_metrics():
    result = simulate(private(rounds=3), show=False)
    epsilons = [record.epsilon for record in result.records]
    assert epsilons == sorted(epsilons)
    assert 0 < epsilons[0] < epsilons[2]
    assert all(not r.training and not r.evaluation and not r.examples for r in result.records)
    assert any("whole contribution" in line for line in result.privacy)
    assert any("from the run's seed" in line for line in result.privacy)


def test_a_simulation_stops_at_its_budget(tmp_path):
    unlimited = private(rounds=50).spec.privacy_plan()
    budget = (unlimited.epsilon(2) + unlimited.epsilon(3)) / 2
    result = simulate(private(change={"budget": budget}, rounds=50), show=False)
    assert len(result.records) == 2
    assert result.records[-1].epsilon <= budget
    assert any("budget is spent" in line for line in result.privacy)


def test_a_population_larger_than_the_experiment_is_refused():
    with pytest.raises(UsageError, match=r"privacy\.population = 900 is larger"):
        private("poisson", {"population": 900})


def test_the_admission_check_uses_the_adapted_clip():
    """Also after the clip has changed much, no update is refused."""
    described = private("adaptive", {"clip": 50.0, "clip_learning_rate": 1.0}, rounds=4)
    result = simulate(described, show=False)
    assert all(record.accepted == 4 for record in result.records)
    grown = private("adaptive", {"clip": 1e-3, "clip_learning_rate": 2.0}, rounds=4)
    assert all(record.accepted == 4 for record in simulate(grown, show=False).records)


def test_clients_that_diverge_count_as_zero():
    data = population()
    data.examples.x[data.shards[2]] = np.nan
    result = simulate(private(data=data, goal=6, rounds=1), show=False)
    assert result.records[0].accepted == 5
    assert "NaN" in result.records[0].reason


def tree(**settings):
    table = {**TABLE, "mechanism": "dp_ftrl", "restart_every": 3}
    return experiment(kernel="resident", goal=2, rounds=6, privacy=table, **settings)


def test_no_client_takes_part_twice_in_a_tree(tmp_path):
    whole = simulate(tree(), show=False)
    path = tmp_path / "checkpoint.safetensors"
    asked = []
    for resume in (False, True):
        simulation = Simulation(tree(), path, resume=resume)
        for record in simulation.rounds():
            asked.append((record.round, simulation._training.participations.excluded))
            if not resume and record.round == 2:
                simulation.save()
                break
        digest = simulation.digest()
        simulation.close()
    assert digest == whole.digest
    sizes = [len(excluded) for _, excluded in asked]
    assert sizes == [2, 4, 0, 2, 4, 0]
    assert all(record.accepted == 2 for record in whole.records)


def test_a_tree_with_too_few_clients_is_refused():
    with pytest.raises(UsageError, match=r"restart_every = 8"):
        experiment(goal=2, privacy={**TABLE, "mechanism": "dp_ftrl", "restart_every": 4})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"separation": 4}, r"privacy\.separation = 8 needs as many clients, got 6"),
        ({"separation": 2, "participations": 1}, r"participations = 8 needs as many clients"),
    ],
)
def test_too_few_clients_for_the_participations_are_refused(table, message):
    """Goal 2 over 4 rounds: all in different ones; with a single participation, too."""
    banded = {**TABLE, "mechanism": "dp_bandmf", **table}
    with pytest.raises(UsageError, match=message):
        experiment(goal=2, rounds=4, privacy=banded)


def test_clients_take_part_as_rarely_as_the_claim_says(tmp_path):
    """At most once in three rounds, twice in all, also after a resumption."""
    table = {**TABLE, "mechanism": "dp_bandmf", "separation": 3, "participations": 2}
    made = experiment(
        data=population((16,) * 12), goal=2, rounds=7, kernel="resident", privacy=table
    )
    whole = simulate(made, show=False)
    path, seen = tmp_path / "checkpoint.safetensors", []
    for resume in (False, True):
        simulation = Simulation(made, path, resume=resume)
        for record in simulation.rounds():
            seen.append(dict(simulation._training.participations.rounds))
            if not resume and record.round == 3:
                simulation.save()
                break
        digest = simulation.digest()
        simulation.close()
    assert digest == whole.digest
    part = [
        {name for name, (_, last) in each.items() if last == t} for t, each in enumerate(seen, 1)
    ]
    assert [len(members) for members in part] == [2] * 7
    for t in range(2, 7):
        assert len(part[t] | part[t - 1] | part[t - 2]) == 6
    counts = {name: number for name, (number, _) in seen[-1].items()}
    assert sum(counts.values()) == 14
    assert max(counts.values()) <= 2
    assert counts == {n: sum(n in members for members in part) for n in counts}


def normalised():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def test_counted_batches_do_not_shorten_the_update_of_the_weights():
    """The count of batches of a normalisation stays as it is, and takes nothing of the clip.

    Ten clients move alike, so their mean is nearly as long as the clip.
    """
    table = {**TABLE, "clip": 0.5, "noise_multiplier": 1e-6}
    made = replace(
        experiment(data=population((16,) * 10), goal=10, rounds=1, kernel="resident",
                   train={"epochs": 5, "batch_size": 4, "learning_rate": 0.1}, privacy=table),
        model=normalised,
    )  # fmt: skip
    result = simulate(made, show=False)
    before = {name: value.numpy() for name, value in normalised().state_dict().items()}
    moved = {name: np.asarray(result.params[name], float) - before[name] for name in before}
    assert moved.pop("1.num_batches_tracked") == 0
    assert 0.3 < np.sqrt(sum(np.sum(m**2) for m in moved.values())) <= 0.5 * (1 + 1e-3)
    assert result.records[0].accepted == 10
