"""Simulated seconds follow from what a run's tasks cost, and are not those of plain averaging."""

import numpy as np
import pytest

from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.output import curves, words
from fedloom.simulation.training.forecast import forecast
from fedloom.simulation.training.simulator import Simulation
from support import parts
from support.experiments import experiment, population

SIZE, CLIENTS = 16, 6
BYTES_PER_S = 1000.0
"""Slow, so that bytes count."""
EXAMPLES_PER_S = 100.0
SPEEDS = {
    "compute_examples_per_s": EXAMPLES_PER_S,
    "download_mbit_s": BYTES_PER_S * 8 / 1e6,
    "upload_mbit_s": BYTES_PER_S * 8 / 1e6,
}
TRAIN = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
LOCAL = 2 * SIZE
RUNS = {
    "fedavg": ({}, LOCAL),
    "scaffold": (parts.parts()["strategy", "scaffold"], LOCAL),
    "mimelite": (parts.parts()["strategy", "mimelite"], LOCAL + SIZE),
    "qfedavg": (parts.parts()["strategy", "qfedavg"], LOCAL + SIZE / 3),
    "ifca": ({"strategy": {"name": "ifca", "clusters": 3}}, LOCAL + 3 * SIZE / 3),
    "ditto": ({"personal": {"name": "ditto", "pull": 0.5}}, 2 * LOCAL),
    "fedrep": (
        {"personal": {"name": "shared", "keep": ["2.*"], "head_epochs": 5}},
        LOCAL + 5 * SIZE,
    ),
    "head only": ({"train": {**TRAIN, "only": ["2.*"]}}, LOCAL),
    "half width": ({"train": {**TRAIN, "widths": [0.5]}}, LOCAL * (4 * 12 + 4 + 4 * 4 + 4) / 140),
    "int8 up": ({"compression": {"up": {"name": "int8", "block": 16}}}, LOCAL),
    "int8 down": ({"compression": {"down": {"name": "int8", "block": 16}}}, LOCAL),
}


def described(name, *, goal=CLIENTS, **settings):
    """A run on equal devices, in which every client takes part in every round by default."""
    return experiment(
        data=population(sizes=(SIZE,) * CLIENTS),
        goal=goal,
        devices=Devices.build(SPEEDS, CLIENTS, 0),
        **{"train": TRAIN, **RUNS[name][0], **settings},
    )


def played(name, **settings):
    """The records of a run."""
    simulation = Simulation(described(name, **settings))
    try:
        return list(simulation.rounds())
    finally:
        simulation.close()


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_round_takes_the_time_of_its_bytes_and_examples(name):
    """Equal clients, at 1000 bytes/s both ways and 100 examples/s."""
    begun = 0.0
    for record in played(name):
        assert record.bytes_down % CLIENTS == record.bytes_up % CLIENTS == 0
        bytes_each = (record.bytes_down + record.bytes_up) / CLIENTS
        seconds = bytes_each / BYTES_PER_S + RUNS[name][1] / EXAMPLES_PER_S
        assert record.virtual_s - begun == pytest.approx(seconds, rel=1e-9)
        begun = record.virtual_s


@pytest.mark.long
def test_no_two_of_these_runs_take_the_same_time():
    """Before costs were counted, all took the same."""
    ends = [played(name)[-1].virtual_s for name in RUNS]
    assert len(set(ends)) == len(ends)


def test_bytes_are_those_of_the_parts():
    """Compared with plain averaging: of 140 floats, 36 in the head, and one file of the model."""
    plain, *_ = played("fedavg")
    assert plain.bytes_up / CLIENTS > 4 * 140
    scaffold = played("scaffold")
    assert scaffold[0].bytes_down == plain.bytes_down  # no control variate yet
    assert scaffold[1].bytes_down > 1.9 * plain.bytes_down
    assert scaffold[0].bytes_up > 1.6 * plain.bytes_up
    assert played("ifca")[0].bytes_down > 2.9 * plain.bytes_down
    assert played("head only")[0].bytes_up < plain.bytes_up / 2
    first, second, third = played("int8 down")
    assert first.bytes_down == plain.bytes_down  # the whole model
    assert second.bytes_down == third.bytes_down != first.bytes_down


@pytest.mark.parametrize(("name", "passes"), [("fedavg", LOCAL), ("mimelite", LOCAL + SIZE)])
def test_totals_and_passes_are_recorded(name, passes):
    """Two epochs on 16 examples; MimeLite's full gradient goes over them once more."""
    records = played(name)
    assert [r.train_passes for r in records] == [CLIENTS * passes] * len(records)
    assert {r.eval_passes for r in records} == {0}
    moved = np.cumsum([r.bytes_down + r.bytes_up for r in records])
    assert [r.total_bytes for r in records] == moved.tolist()
    assert [x for x, _ in curves.series(records, "test", "accuracy", over="bytes")] == list(moved)


@pytest.mark.parametrize("goal", [1, CLIENTS])
def test_the_forecast_is_that_of_the_first_round(goal):
    """`--describe` states the bytes, the passes and the time that the first round takes."""
    made = described("scaffold", goal=goal)
    simulation = Simulation(made)
    record = next(iter(simulation.rounds()))
    setup = simulation.worker_setup
    simulation.close()
    found = forecast(made, setup.manifest, setup.params)
    assert found["bytes up"].startswith(words.size(record.bytes_up / goal))
    assert found["bytes down"].startswith(words.size(record.bytes_down / goal))
    assert found["passes"].startswith(f"{record.train_passes // goal} examples")
    assert found["virtual time"] == f"{words.duration(record.virtual_s)} for the first round"


def test_a_model_is_downloaded_once():
    """A client that has the model downloads nothing, and an evaluation uploads no file."""
    made = experiment(data=population(held_out=2), goal=CLIENTS, evaluate_only=True)
    simulation = Simulation(made)
    records = list(simulation.rounds())
    simulation.close()
    assert records[0].bytes_down > 0
    assert [record.bytes_down for record in records[1:]] == [0, 0]
    assert {record.bytes_up for record in records} == {0}


def test_a_client_of_a_buffer_downloads_each_model_once():
    """A client that has the newest model downloads nothing."""
    speeds = {"distribution": "choice", "values": [10.0, 1000.0]}
    made = experiment(
        data=population(sizes=(SIZE,) * CLIENTS),
        rounds=6,
        cohort={"mode": "buffered", "concurrency": CLIENTS, "goal": 5},
        devices=Devices.build({**SPEEDS, "compute_examples_per_s": speeds}, CLIENTS, 0),
    )
    simulation = Simulation(made)
    records = list(simulation.rounds())
    simulation.close()
    model = simulation.worker_setup.manifest.size_bytes
    assert {r.bytes_up / r.accepted for r in records} == {records[0].bytes_up / 5}
    assert records[0].bytes_down == CLIENTS * model  # the initial model, for each client once
    assert all(0 < r.bytes_down <= CLIENTS * model for r in records)
    assert sum(r.bytes_down for r in records) < sum(r.accepted for r in records) * model + 6 * model


def test_a_resumed_simulation_knows_what_clients_have(tmp_path):
    """Bytes and seconds are those of a simulation that was not stopped."""
    tables = RUNS["int8 down"][0] | RUNS["scaffold"][0]
    whole = [
        (r.bytes_down, r.total_bytes, r.virtual_s)
        for r in played("fedavg", rounds=5, goal=3, **tables)
    ]
    made = described("fedavg", rounds=5, goal=3, **tables)
    found = []
    for resume in (False, True):
        simulation = Simulation(made, tmp_path / "checkpoint", resume=resume)
        for record in simulation.rounds():
            found.append((record.bytes_down, record.total_bytes, record.virtual_s))
            if record.round == 2 and not resume:
                simulation.save()
                break
        simulation.close()
    assert found == whole
