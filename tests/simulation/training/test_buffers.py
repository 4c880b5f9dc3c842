"""Buffers on the virtual clock: schedules computed by hand, and reproducible results."""

import io
import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.client import Client
from fedloom.protocol.tensors.container import write_params
from fedloom.server.engine import BufferConfig, uniform
from fedloom.simulation.clock.buffer_clock import Flight, play_buffer
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.data.population import numbered
from fedloom.simulation.training.simulator import Simulation
from fedloom.strategies import DELTA, Full, Partial, TensorSpec, weight_units
from fedloom.strategies.staleness import discounted
from support.experiments import experiment, population


def run(described, checkpoint=None, *, resume=False, rounds=None):
    """Digest and records of a simulation, or of its next few rounds."""
    simulation = Simulation(described, checkpoint, resume=resume)
    try:
        records = []
        for record in simulation.rounds():
            records.append(record)
            if len(records) == rounds:
                break
        simulation.save()
        return simulation.digest(), records
    finally:
        simulation.close()


def devices_of(seconds, **changes):
    """Devices whose task takes this long each; bytes cost nothing."""
    zeros, fast = np.zeros(len(seconds)), np.full(len(seconds), 1e30)
    facts = {"jitter": 0.0, "drop_out": zeros, "failure": zeros, **changes}
    return Devices(
        seed=0, example_s=np.array(seconds, float), download=fast, upload=fast, **facts
    )  # fmt: skip


def load_of(count):
    """One example each."""
    return Load(trained=np.ones(count, np.int64), download_bytes=0, upload_bytes=0)


def plays(config, names, devices, rounds, *, refused=frozenset()):
    """Successive buffers, each from the state after the one before."""
    clock, played, flight, now = Clock(names, devices), [], None, 0.0
    for number in range(1, rounds + 1):
        play = play_buffer(
            clock, config, select=uniform(5, number), number=number, load=load_of(len(names)),
            flight=flight, start_s=now, refused=refused,
        )  # fmt: skip
        flight, now = play.flight, play.play.end_s or 0.0
        played.append(play)
    return played


def told(plays):
    """(client, staleness) of the updates of each buffer."""
    return [
        [
            (name, number - origin)
            for name, origin in zip(play.play.accepted, play.origins, strict=True)
        ]
        for number, play in enumerate(plays, 1)
    ]


# ---- known by hand -------------------------------------------------------------------------------


def test_virtual_time_and_staleness_for_constant_speeds():
    """Two devices of 1 s and one of 3.5 s; two updates to a buffer, three at work."""
    config = BufferConfig(goal=2, concurrency=3)
    played = plays(config, ("f", "g", "s"), devices_of([1.0, 1.0, 3.5]), 6)
    assert [play.play.end_s for play in played] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    updates = told(played)
    both = {("f", 0), ("g", 0)}
    assert [set(u) for u in updates[:3]] == [both] * 3
    # s has worked on the first model for 3.5 s; of f and g, who report at 4 s, one closes the
    # buffer with it, and the other is one model behind.
    (slow, stale), (first, fresh) = updates[3]
    assert (slow, stale, fresh) == ("s", 3, 0)
    (second,) = {"f", "g"} - {first}
    assert updates[4] == [(second, 1), (first, 0)]
    assert set(updates[5]) == both


def test_equally_fast_devices_report_in_turn():
    config = BufferConfig(goal=2, concurrency=4)
    played = plays(config, numbered(20), None, 5)
    staleness = [[s for _, s in updates] for updates in told(played)]
    assert staleness[0] == [0, 0]
    # The j-th report is of the j-th task, which was offered after j - 4 reports.
    wanted = [[j // 2 - max(0, j - 3) // 2 for j in (n, n + 1)] for n in range(0, 10, 2)]
    assert staleness == wanted


def test_fedasync_makes_a_model_of_each_update():
    """A goal of 1: a device twice as slow has a staleness of two."""
    config = BufferConfig(goal=1, concurrency=2)
    played = plays(config, ("a", "b"), devices_of([1.0, 2.5]), 6)
    assert told(played) == [
        [("a", 0)], [("a", 0)], [("b", 2)], [("a", 1)], [("a", 0)], [("b", 2)],
    ]  # fmt: skip
    assert [play.play.end_s for play in played] == [1.0, 2.0, 2.5, 3.0, 4.0, 5.0]


def test_a_device_too_slow_for_max_staleness_never_counts():
    config = BufferConfig(goal=1, concurrency=2, max_staleness=1)
    played = plays(config, ("a", "b"), devices_of([1.0, 2.5]), 6)
    assert all(name == "a" for updates in told(played) for name, _ in updates)
    assert all(s.origin >= 5 for s in played[-1].flight.members.values())


def test_a_refused_update_frees_its_place():
    config = BufferConfig(goal=2, concurrency=2)
    names = ("a", "b", "c")
    (first,) = plays(config, names, devices_of([1.0, 2.0, 3.0]), 1)
    place = first.play.places[-1]
    (again,) = plays(config, names, devices_of([1.0, 2.0, 3.0]), 1, refused=frozenset({(1, place)}))
    assert again.updates[0] == first.updates[0]
    assert place not in again.play.places
    assert again.play.counts["refused"] == 1


# ---- random devices ------------------------------------------------------------------------------


def unruly(seed, clients=12):
    """Devices of various speeds that leave, return, decline and fail."""
    table = {
        "compute_s_per_example": {"distribution": "lognormal", "median": 4.0, "sigma": 1.0},
        "download_mbit_s": 1.0,
        "upload_mbit_s": 1.0,
        "availability": {"on_s": 9.0, "off_s": 6.0},
        "drop_out": 0.1,
        "failure": 0.1,
        "jitter": 0.3,
    }
    return Devices.build(table, clients, seed)


configs = st.builds(
    BufferConfig,
    goal=st.integers(1, 4),
    concurrency=st.integers(1, 8),
    max_staleness=st.sampled_from([0, 2, 20]),
    deadline_s=st.sampled_from([30.0, 600.0]),
    patience_s=st.sampled_from([0.0, 3.0]),
)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(configs, st.integers(0, 1000))
def test_buffers_keep_their_invariants_for_any_devices(config, seed):
    names = numbered(12)
    played = plays(config, names, unruly(seed), 8)
    seen, now = set(), 0.0
    for number, play in enumerate(played, 1):
        assert play.play.end_s >= now
        now = play.play.end_s
        assert len(set(play.play.places)) == len(play.play.places)
        if play.play.state == "committed":
            assert 1 <= len(play.updates) <= config.goal
            assert not set(play.updates) & seen
            seen |= set(play.updates)
            assert all(0 <= number - origin <= config.max_staleness for origin in play.origins)
            members = play.flight.members
            assert sum(s.phase != "lost" for s in members.values()) <= config.concurrency + 12
            assert {place for _, _, place in play.flight.due} == {names.index(n) for n in members}
        else:
            assert play.flight is None


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(configs, st.integers(0, 1000), st.integers(1, 6))
def test_a_flight_restored_from_a_file_continues_equally(config, seed, cut):
    """The state between two buffers consists of plain values."""
    names, devices = numbered(12), unruly(seed)
    clock, flights, now = Clock(names, devices), [None, None], [0.0, 0.0]
    for number in range(1, 9):
        outcomes = [
            play_buffer(
                clock, config, select=uniform(5, number), number=number, load=load_of(12),
                flight=flight, start_s=at_s,
            )
            for flight, at_s in zip(flights, now, strict=True)
        ]  # fmt: skip
        flights, now = [o.flight for o in outcomes], [o.play.end_s for o in outcomes]
        assert outcomes[0] == outcomes[1]
        if number == cut and flights[1] is not None:
            flights[1] = Flight.from_dict(json.loads(json.dumps(flights[1].as_dict())))


# ---- trained -------------------------------------------------------------------------------------

COHORT = {"mode": "buffered", "goal": 2, "concurrency": 4, "max_staleness": 3}
SPEEDS = devices_of([0.1, 0.02, 0.3, 0.05, 0.2, 0.07])


def buffered(**changes):
    """An experiment of six clients in buffers."""
    wanted = {"rounds": 8, "cohort": COHORT, "devices": SPEEDS, **changes}
    return experiment(**wanted)


class Walk(Client):
    """Moves every value towards its own number: its update depends on the received model."""

    def __init__(self, name, bad=()):
        self.target = np.float32(int(name.rpartition("-")[2]))
        self.bad = name in bad

    def train(self, params, task):
        if self.bad and task.round >= 2:
            return {name: np.full_like(value, np.nan) for name, value in params.items()}, 1, {}
        half = np.float32(0.5)
        new = {n: value + half * (self.target - value) for n, value in params.items()}
        return new, 1 + int(self.target), {}


def test_each_client_trains_on_the_model_of_its_task():
    """The model follows from the played schedule, version by version."""
    described = buffered(client=Walk, rounds=6, model="logistic")
    digest, records = run(described)
    assert max(record.staleness for record in records) > 0
    names, spec = described.population.names, described.spec
    config, clock = spec.buffer_config(), Clock(names, SPEEDS)
    load = Load(
        trained=described.population.sizes * 2, download_bytes=0, upload_bytes=0
    )  # fmt: skip
    simulation_params = described.model().state_dict()
    models = {1: {n: t.numpy().copy() for n, t in simulation_params.items()}}
    specs = {(DELTA, n): TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in models[1].items()}
    strategy, state, flight, now = spec.build_strategy(), None, None, 0.0
    state = strategy.init(models[1])
    for number in range(1, 7):
        play = play_buffer(
            clock, config, select=spec.select(number, "train", None), number=number, load=load,
            flight=flight, start_s=now,
        )  # fmt: skip
        flight, now = play.flight, play.play.end_s
        partial = Partial(specs, spec.exponent())
        for origin, place in play.updates:
            new, num_examples, _ = Walk(names[place]).train(models[origin], None)
            units = weight_units(num_examples)
            counted = discounted(units, config.staleness(number - origin))
            for name, value in new.items():
                delta = value - models[origin][name]
                partial.add_array((DELTA, name), Full(), units, delta, value_units=counted)
            partial.count += 1
        models[number + 1], state = strategy.finish(state, models[number], partial)
        assert records[number - 1].virtual_s == now
        assert records[number - 1].accepted == len(play.updates)

    dtypes = dict.fromkeys(models[7], "F32")
    assert write_params(io.BytesIO(), models[7], dtypes) == digest


def test_gives_the_same_bits_for_any_number_of_workers():
    alone, records = run(buffered())
    digest, others = run(buffered(workers=2))
    assert digest == alone
    assert [r.test for r in others] == [r.test for r in records]
    assert [r.staleness for r in others] == [r.staleness for r in records]
    assert any(r.staleness > 0 for r in records)
    assert alone != run(buffered(cohort={**COHORT, "staleness": "constant"}))[0]


def test_a_resumed_simulation_ends_with_the_same_bits(tmp_path):
    whole, records = run(buffered())
    for stopped in (1, 4, 7):
        path = tmp_path / f"{stopped}.safetensors"
        run(buffered(), path, rounds=stopped)
        digest, rest = run(buffered(), path, resume=True)
        assert digest == whole
        assert [r.virtual_s for r in rest] == [r.virtual_s for r in records[stopped:]]


@pytest.mark.long
def test_error_feedback_is_kept_between_buffers(tmp_path):
    top_k = {"up": {"name": "top_k", "fraction": 0.2}}
    whole, records = run(buffered(compression=top_k, rounds=10))
    assert records[-1].test["loss"] < records[0].test["loss"]
    assert run(buffered(compression=top_k, rounds=10, workers=2))[0] == whole
    path = tmp_path / "checkpoint"
    run(buffered(compression=top_k, rounds=10), path, rounds=5)
    assert run(buffered(compression=top_k, rounds=10), path, resume=True)[0] == whole


def test_a_simulation_can_be_extended_by_more_buffers(tmp_path):
    """The result is that of a simulation with this length from the start."""
    path = tmp_path / "checkpoint"
    run(buffered(rounds=3), path)
    assert run(buffered(rounds=6), path, resume=True)[0] == run(buffered(rounds=6))[0]


def test_a_refused_update_leaves_no_trace():
    """The buffer is played again with the refusal; finished clients are not trained again."""
    name = numbered(6)[1]
    bad = partial(Walk, bad=(name,))
    digest, records = run(buffered(client=bad, rounds=6, model="logistic"))
    assert sum(record.counts.get("refused", 0) for record in records) >= 1
    assert any(name in record.reason for record in records)
    assert digest == run(buffered(client=bad, rounds=6, model="logistic", workers=2))[0]


def test_a_round_of_evaluation_follows_the_last_buffer():
    data = population((9, 30, 12, 21, 5, 17), held_out=2)
    _, records = run(buffered(data=data, rounds=3))
    assert [record.kind for record in records] == ["train"] * 3 + ["evaluate"]
    assert records[-1].evaluation["loss"] > 0
