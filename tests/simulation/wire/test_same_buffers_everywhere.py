"""Buffered rounds of a simulation and of a deployment have the same updates, bits and bytes.

A simulation plays each schedule on the virtual clock. Six agents on a real server then report in
the simulated order: each waits with its update until those before it are accepted. The server draws
the clients, makes the models, withdraws what is too stale and counts the bytes itself.
"""

import time
from collections import Counter

import pytest

from fedloom.client import Client
from fedloom.protocol.errors import UsageError
from fedloom.server.engine import RoundState
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.training.simulator import Simulation
from support import parts
from support.agents import until
from support.deployment import Deployment, kernel_client
from support.experiments import experiment, population
from support.marks import sampled

SPEEDS = {
    "compute_s_per_example": {"distribution": "lognormal", "median": 1.0, "sigma": 1.0},
    "download_mbit_s": 1000.0,
    "upload_mbit_s": 1000.0,
}
SIZES = (13, 31, 17, 21, 9, 18)
WITHOUT = {
    *(("strategy", name) for name in ("feddyn", "ifca", "mimelite", "scaffold")),
    *(("aggregation", name) for name in parts.AGGREGATIONS if name != "mean"),
    *(("selection", name) for name in parts.SELECTIONS if name not in {"uniform", "stratified"}),
    *(("codec down", name) for name in parts.CODECS if name != "random_k"),
    *(("privacy", name) for name in parts.PRIVACY),
}  # fmt: skip
"""Registered parts that a buffered run refuses: they need a cohort on one model."""
WITH = [part for part in parts.parts() if part not in WITHOUT]


def described(*, concurrency=4, goal=2, max_staleness=20, quorum=1, **tables):
    """An experiment in buffers, on devices of different speeds."""
    cohort = {
        "mode": "buffered", "goal": goal, "concurrency": concurrency, "quorum": quorum,
        "max_staleness": max_staleness, "deadline_s": 3600.0,
    }  # fmt: skip
    settings = {"rounds": 10, "evaluate": False, **tables, "cohort": cohort}
    devices = Devices.build(SPEEDS, len(SIZES), 6)
    return experiment(data=population(sizes=SIZES), kernel="resident", devices=devices, **settings)


def simulated(made):
    """The digest, the records, and (client, round of its task) of each buffer's updates."""
    simulation, updates = Simulation(made), []
    run = simulation._buffer_trainer.run

    def noting(*args, **kwargs):
        done, between = run(*args, **kwargs)
        places = zip(done.play.accepted, done.play.places, strict=True)
        updates.append([(name, done.asked_in[place]) for name, place in places])
        return done, between

    simulation._buffer_trainer.run = noting
    try:
        records = list(simulation.rounds())
        return simulation.digest(), records, updates
    finally:
        simulation.close()


class Turns:
    """The tasks that agents have begun, and those that may end."""

    def __init__(self):
        self.begun, self.may_end = set(), set()

    def client(self, made, name):
        """A device that ends its task when it may."""
        return InTurn(kernel_client(made, name), self)


class InTurn(Client):
    """Waits for its turn, and trains."""

    def __init__(self, inner, turns):
        self.inner, self.turns = inner, turns

    def train(self, params, task):
        mine = (task.client, task.round)
        self.turns.begun.add(mine)
        while mine not in self.turns.may_end and not task.should_stop():
            time.sleep(0.002)
        return self.inner.train(params, task)


def steered(deployment, turns, updates):
    """A function that lets agents report in this order, one after another.

    The next one may when the server has asked all replacements and they have begun.
    """

    def at_work(run):
        """The number of the open buffer, and the tasks at work; None and none between two."""
        driver = deployment.federation.server.runs.get(run)
        engine = None if driver is None or driver.round is None else driver.round.engine
        if engine is None or engine.state is not RoundState.REPORTING:
            return None, set()
        members = engine.cohort.unfinished()
        return engine.number, {(client, engine.origin(client)) for client in members}

    async def steer(run):
        for number, update in ((n, u) for n, buffer in enumerate(updates, 1) for u in buffer):

            def is_next(number=number, update=update):
                now, tasks = at_work(run)
                return now == number and update in tasks and tasks <= turns.begun

            def is_over(update=update):
                return update not in at_work(run)[1]

            await until(is_next)
            turns.may_end.add(update)
            await until(is_over)

    return steer


@pytest.fixture(scope="module")
def deployment(runner, tmp_path_factory):
    """A server and six agents, shared by all cases."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    runner.run(deployment.start())
    yield deployment
    runner.run(deployment.stop())


def same(made, deployment, runner):
    """Play an experiment on both sides and compare; returns the simulation's records."""
    digest, records, updates = simulated(made)
    turns = Turns()
    steer = steered(deployment, turns, updates)
    run, rounds = runner.run(deployment.play(made, turns.client, steer))
    ledger = deployment.federation.ledger
    for row, buffer in zip(rounds, updates, strict=True):
        accepted = ledger.accepted(run.id, row.number)
        assert [(update.client, update.round) for update in accepted] == buffer
    assert [r.staleness for r in rounds] == [r.staleness for r in records]
    assert run.model == digest
    same_traffic(rounds, records, [m for r in rounds for m in ledger.members(run.id, r.number)])
    return records


def same_traffic(rounds, records, members):
    """Check the bytes of each buffer and of the run against those that the server counted.

    The server keeps the bytes of an update with its task, in the round in which its client was
    asked; a simulation counts them in the buffer in which it comes.
    """
    assert [r.summary["bytes_down"] for r in rounds] == [r.bytes_down for r in records]
    arrived = Counter()
    for member in members:
        if member.counts_in is None:
            assert not member.bytes_up
        else:
            assert member.bytes_up == member.size_bytes
            arrived[member.counts_in] += member.bytes_up
    assert [arrived[r.number] for r in rounds] == [r.bytes_up for r in records]
    counted = sum(r.summary["bytes_down"] + r.summary["bytes_up"] for r in rounds)
    assert counted == records[-1].total_bytes


def _case(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("concurrency", "goal", "max_staleness"),
    [(4, 2, 20), _case(1, 1, 20), _case(2, 1, 20), _case(3, 3, 20), _case(5, 1, 20),
     _case(6, 2, 20), _case(4, 1, 1), _case(6, 2, 0)],
)  # fmt: skip
def test_buffers_are_the_same(concurrency, goal, max_staleness, deployment, runner):
    """For any concurrency and goal, and with tasks that are withdrawn as too stale."""
    made = described(concurrency=concurrency, goal=goal, max_staleness=max_staleness)
    records = same(made, deployment, runner)
    stalest = max(record.staleness for record in records)
    assert (stalest > 0) == (max_staleness > 0 and concurrency > 1)
    lost = sum(record.bytes_down - record.bytes_up for record in records)
    assert lost > 0 or concurrency == 1


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(
    "part", sampled([p for p in parts.parts() if p not in WITHOUT], 3, of_one=True), ids="-".join
)
def test_every_part_has_the_same_buffers(part, deployment, runner):
    """With stale updates: bits and bytes."""
    records = same(described(**parts.parts()[part]), deployment, runner)
    assert max(record.staleness for record in records) > 0


@pytest.mark.parametrize("part", sorted(WITHOUT), ids="-".join)
def test_other_parts_are_refused_in_buffers(part):
    with pytest.raises(UsageError, match="buffered"):
        described(goal=6, concurrency=6, quorum=5, **parts.parts()[part])
