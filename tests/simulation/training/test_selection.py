"""A simulation selects by observations of its committed rounds, like a server."""

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.wire.harness import over_the_wire
from support.experiments import Nudge, experiment, population

POLICIES = [
    {"name": "size"},
    {"name": "power_of_choice", "choices": 2.0},
    {"name": "oort", "exploration": 0.5},
    {"name": "sticky", "share": 0.5},
    {"name": "stratified", "label": "number"},
    {"name": "stratified", "patterns": ["*-00[0-2]"]},
]
SPEEDS = {
    "compute_examples_per_s": {"distribution": "choice", "values": [100.0, 0.5]},
    "download_mbit_s": 100.0,
    "upload_mbit_s": 100.0,
}


def cohorts_of(simulation):
    """The clients that each round counted, from the trainer's reports."""
    seen, run = [], simulation._trainer.run

    def noting(*args, **kwargs):
        done = run(*args, **kwargs)
        seen.append(sorted(done.play.accepted))
        return done

    simulation._trainer.run = noting
    list(simulation.rounds())
    return seen


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES, ids="-".join)
def test_a_resumed_simulation_draws_the_same_cohorts(tmp_path, policy):
    """Observations are resumed: the same clients and bits as without a stop."""
    settings = {"rounds": 5, "goal": 2, "selection": policy, "client": Nudge}
    whole = Simulation(experiment(**settings))
    cohorts = cohorts_of(whole)
    path = tmp_path / "checkpoint"
    first = Simulation(experiment(**settings), path)
    for record in first.rounds():
        if record.round == 3:
            first.save()
            break
    rest = Simulation(experiment(**settings), path, resume=True)
    assert cohorts_of(rest) == cohorts[3:]
    assert rest.digest() == whole.digest()
    for each in (whole, first, rest):
        each.close()


def test_power_of_choice_selects_clients_with_high_losses():
    described = experiment(
        rounds=6, goal=2, selection={"name": "power_of_choice", "choices": 3.0}, client=Nudge
    )
    simulation = Simulation(described)
    # No client reports a loss here, so every client is tried before any is asked again.
    cohorts = cohorts_of(simulation)
    assert sorted(name for cohort in cohorts[:3] for name in cohort) == list(
        described.population.names
    )
    simulation.close()
    described = experiment(rounds=8, goal=2, selection={"name": "power_of_choice", "choices": 3.0})
    simulation = Simulation(described)
    losses = simulation._history
    asked = []
    run = simulation._trainer.run

    def noting(*args, **kwargs):
        known = losses.of(described.population.names)
        if (known.rounds > 0).all():
            largest = np.argsort(-known.loss)[:2]
            done = run(*args, **kwargs)
            asked.append(sorted(done.play.places) == sorted(largest.tolist()))
            return done
        return run(*args, **kwargs)

    simulation._trainer.run = noting
    list(simulation.rounds())
    assert asked == [True] * 5
    simulation.close()


def test_the_deadline_policy_learns_slow_devices():
    """A device that missed the deadline is observed with the time waited for it."""
    devices = Devices.build(SPEEDS, 6, 5)
    cohort = {"goal": 3, "quorum": 1, "deadline_s": 20.0}
    described = experiment(
        rounds=10, devices=devices, cohort=cohort, selection={"name": "deadline"}
    )
    simulation = Simulation(described)
    records = list(simulation.rounds())
    known = simulation._history.of(described.population.names)
    slow = known.seconds > 18.0
    assert 0 < slow.sum() <= 3
    assert records[-1].accepted == 3
    assert records[-1].counts.get("training", 0) == 0
    lengths = np.diff([0.0, *(record.virtual_s for record in records)])
    assert lengths[-1] < 18.0 <= lengths.max()
    simulation.close()


def test_durations_are_observed():
    """From the offer to the update, on the virtual clock."""
    devices = Devices.build({**SPEEDS, "compute_examples_per_s": 10.0}, 6, 0)
    described = experiment(
        rounds=1, goal=6, devices=devices, selection={"name": "oort"}, cohort={"goal": 6}
    )
    simulation = Simulation(described)
    (record,) = simulation.rounds()
    known = simulation._history.of(described.population.names)
    transfer = (record.bytes_down + record.bytes_up) / 6 * 8 / 100e6
    epochs = 2
    wanted = epochs * described.population.sizes / 10.0 + transfer
    np.testing.assert_allclose(known.seconds, wanted, rtol=1e-9)
    np.testing.assert_array_equal(known.num_examples, described.population.sizes)
    simulation.close()


def test_a_policy_that_uses_durations_needs_devices():
    with pytest.raises(UsageError, match=r"selection\.name = 'deadline'"):
        experiment(selection={"name": "deadline"})


def test_an_invalid_policy_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'sticky'"):
        experiment(selection={"name": "stiky"})
    with pytest.raises(UsageError, match=r"Missing setting selection\.name"):
        experiment(selection={"share": 0.5})


@pytest.mark.long
@pytest.mark.e2e
def test_over_the_wire_labels_select_the_same_clients():
    """Server and simulation read the label from the same metric, and select the same cohorts."""
    settings = {
        "client": Nudge,
        "cohort": {"goal": 2, "quorum": 2},
        "rounds": 4,
        "selection": {"name": "stratified", "label": "number"},
    }
    described = experiment(kernel="resident", data=population(sizes=(9, 30, 12, 21)), **settings)
    here = simulate(described, show=False)
    there = over_the_wire(described, show=False)
    assert there.digest == here.digest
    assert [r.examples for r in there.records] == [r.examples for r in here.records]
    uniform = experiment(
        kernel="resident",
        data=described.population,
        **(settings | {"selection": {"name": "uniform"}}),
    )
    assert simulate(uniform, show=False).digest != here.digest
