"""The clock takes the real bytes of updates whose size depends on their values.

The expected bytes of each client are those of a simulation of this client alone.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.training.simulator import Simulation
from support.experiments import Nudge, experiment

SIZE, CLIENTS, FEATURES = 16, 6, 200
BYTES_PER_S = 100.0
"""So slow that one byte more is seen."""
EXAMPLES_PER_S = 100.0
TRAINING_S = 2 * SIZE / EXAMPLES_PER_S
SPEEDS = {
    "compute_examples_per_s": EXAMPLES_PER_S,
    "download_mbit_s": BYTES_PER_S * 8 / 1e6,
    "upload_mbit_s": BYTES_PER_S * 8 / 1e6,
}
CODECS = {"lossless": {"name": "lossless", "level": 1}, "top_k": {"name": "top_k", "fraction": 0.1}}


def sparse():
    """Clients with 200, 166, … and 33 features that are not zero: their updates differ in length.

    Lossless shrinks zeros; the places of top_k need two bytes where more than 255 zeros follow.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * SIZE, FEATURES)).astype(np.float32)
    shards = np.split(np.arange(len(x)), CLIENTS)
    for client, shard in enumerate(shards):
        x[shard, FEATURES * (CLIENTS - client) // CLIENTS :] = 0
    return Population(
        examples=Examples(x=x, y=rng.integers(0, 4, len(x))),
        names=numbered(CLIENTS),
        shards=shards,
        test=Examples(x=x[:SIZE], y=rng.integers(0, 4, SIZE)),
        num_classes=4,
    )


def alone(data, client):
    """The population of one of its clients."""
    return replace(
        data, names=(data.names[client],), shards=[data.shards[client]], held_out_shards=None
    )


def records(data, *, up, goal, rounds=1, speeds=SPEEDS, cohort=None, **settings):
    """The records of a run on equal devices."""
    simulation = Simulation(
        experiment(
            data=data,
            rounds=rounds,
            devices=Devices.build(speeds, len(data.shards), 0),
            cohort={"goal": goal, **(cohort or {})},
            compression={} if up is None else {"up": up},
            train={"epochs": 2, "batch_size": 4, "learning_rate": 0.1},
            **settings,
        )
    )
    try:
        return list(simulation.rounds()), simulation.worker_setup.manifest.size_bytes
    finally:
        simulation.close()


def sizes(data, up):
    """The bytes of each client's first update."""
    return [records(alone(data, client), up=up, goal=1)[0][0].bytes_up for client in range(CLIENTS)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_round_ends_with_the_update_that_is_short_enough(codec):
    """Of six equal devices the three with the shortest updates come first, whatever a forecast."""
    data, up = sparse(), CODECS[codec]
    each = sizes(data, up)
    shortest = sorted(each)[:3]
    assert len(set(each)) > 1
    (record,), model = records(data, up=up, goal=3, cohort={"over_selection": 2.0})
    assert record.bytes_up == sum(shortest)
    expected = (model + shortest[-1]) / BYTES_PER_S + TRAINING_S
    assert record.virtual_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_a_deadline_is_met_by_the_real_bytes(codec):
    """A deadline of just the longest update: the round is committed; a moment less: abandoned."""
    data, up = sparse(), CODECS[codec]
    longest = max(sizes(data, up))
    model = records(data, up=up, goal=CLIENTS)[1]
    needed = (model + longest) / BYTES_PER_S + TRAINING_S
    for deadline_s, state in ((needed + 0.005, "committed"), (needed - 0.005, "abandoned")):
        (record, *_), _ = records(
            data, up=up, goal=CLIENTS, cohort={"deadline_s": deadline_s, "quorum": CLIENTS}
        )
        assert record.state == state


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_buffered_work_takes_the_time_of_its_own_bytes(codec):
    """Two devices always at work: each update came its own time after the device's last one.

    With top_k a device remembers what it left out, so its bytes depend on its earlier updates.
    """
    up = CODECS[codec] | ({"error_feedback": True} if codec == "top_k" else {})
    data = sparse()
    data = replace(data, names=data.names[-2:], shards=data.shards[-2:])
    cohort = {"mode": "buffered", "concurrency": 2}
    found, model = records(data, up=up, goal=1, rounds=12, cohort=cohort)
    free_at = [0.0, 0.0]
    for record in found:
        needed = (model + record.bytes_up) / BYTES_PER_S + TRAINING_S
        off = [abs(record.virtual_s - at - needed) for at in free_at]
        device = int(np.argmin(off))
        assert off[device] < 1e-6, (record.round, off)
        free_at[device] = record.virtual_s
    assert len({record.bytes_up for record in found}) > 1


def test_training_for_the_clock_changes_no_model():
    """Clients whose updates do not count add nothing: the model is that of a run without a codec.

    Devices differ in speed and bytes take no time, so that both runs count the same clients.
    """
    data, fast = sparse(), {**SPEEDS, "download_mbit_s": 1e9, "upload_mbit_s": 1e9}
    speeds = {"distribution": "choice", "values": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]}
    fast["compute_examples_per_s"] = speeds
    made = {}
    for up in (None, CODECS["lossless"]):
        made[str(up)], _ = records(
            data, up=up, goal=3, rounds=4, speeds=fast, cohort={"over_selection": 2.0}
        )
    plain, encoded = made.values()
    assert [r.test for r in encoded] == [r.test for r in plain]
    assert all(a.bytes_up < b.bytes_up for a, b in zip(encoded, plain, strict=True))


def test_a_refused_update_costs_its_bytes_or_a_forecast():
    """One client's update is refused before it is encoded; the round continues without it."""
    data = sparse()
    nudge = partial(Nudge, bad=(data.names[2],))
    (record,), _ = records(
        data, up=CODECS["lossless"], goal=4, cohort={"over_selection": 1.5}, client=nudge
    )
    assert (record.state, record.accepted) == ("committed", 4)
    assert data.names[2] in record.reason
