"""Rollbacks of runs: on a real server, with real clients, and across restarts."""

import threading

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from support.agents import Adder, played, result, submit, until

pytestmark = pytest.mark.e2e

ONE = {"rounds": 3, "cohort": {"goal": 1, "quorum": 1}}
MODEL = {"w": np.zeros(4, np.float32)}


class Gated(Adder):
    """Trains once for each permission of the test; its step depends on the received model."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Semaphore(0)

    def train(self, params, task):
        while not self.gate.acquire(timeout=0.01):
            if task.should_stop():
                return params, 1, {}
        return {"w": params["w"] + np.float32(1) + params["w"] / 3}, 1, {}


def committed(federation, run):
    return [r.number for r in federation.ledger.list_rounds(run) if r.state == "committed"]


def standing(federation, run):
    rows = federation.ledger.list_rounds(run)
    return [r.number for r in rows if r.state == "committed" and r.undone_at is None]


async def rolled_back(federation, agents, spec):
    """A run that commits two rounds, is rolled back to the first, and finishes."""
    client = Gated()
    await agents.start("ann", client)
    run = await submit(federation, MODEL, **spec)
    client.gate.release(2)
    await until(lambda: committed(federation, run) == [1, 2])
    point = await federation.server.runs.roll_back(run, 1)
    assert point.undone == (2,)
    client.gate.release(100)
    await federation.ended(run)
    return run


async def straight(federation, agents, spec):
    """The same run without a rollback."""
    client = Gated()
    await agents.start("ann", client)
    client.gate.release(100)
    run = await submit(federation, MODEL, **spec)
    await federation.ended(run)
    return run


@pytest.mark.long
@pytest.mark.parametrize(
    "spec",
    [
        ONE | {"strategy": {"name": "fedadam"}},
        ONE | {"strategy": {"name": "fedavgm"}, "compression": {"down": {"name": "int8"}}},
        ONE | {"cohort": {"mode": "buffered", "goal": 1, "concurrency": 1}},
    ],
    ids=["optimizer", "told", "buffered"],
)
def test_a_run_continues_from_the_exact_state_of_the_earlier_round(tmp_path, spec):
    """Its last model has the bits of a run without a rollback."""

    async def both(federation, agents):
        first = await rolled_back(federation, agents, spec)
        await agents.stop("ann")
        second = await straight(federation, agents, spec)
        models = [result(federation, run)["w"].copy() for run in (first, second)]
        return models, federation.ledger.run(first), standing(federation, first)

    (back, forth), row, stands = played(tmp_path, both)
    assert back.tobytes() == forth.tobytes()
    assert np.any(back != 0)
    assert (row.state, row.committed) == ("finished", 3)
    assert len(stands) == 3
    assert stands[0] == 1
    assert 2 not in stands


@pytest.mark.long
def test_the_open_round_is_aborted_first(tmp_path):
    """Its task is withdrawn, its number is not used again, and its row has the reason."""

    async def scenario(federation, agents):
        client = Gated()
        await agents.start("ann", client)
        run = await submit(federation, MODEL, **ONE)
        client.gate.release()
        await until(lambda: committed(federation, run) == [1])
        await until(lambda: federation.ledger.open_round_of(run) is not None)
        await federation.server.runs.roll_back(run, 0)
        client.gate.release(100)
        await federation.ended(run)
        return federation.ledger.list_rounds(run)

    rows = played(tmp_path, scenario)
    assert [r.state for r in rows] == ["committed", "abandoned", *["committed"] * 3]
    assert rows[1].reason == "rolled back to round 0 by the operator"
    assert rows[0].undone_at is not None
    assert rows[2].model_in == rows[0].model_in


@pytest.mark.long
def test_a_repeated_rollback_changes_nothing(tmp_path):
    """The round that opened after the first one stays."""

    async def scenario(federation, agents):
        client = Gated()
        await agents.start("ann", client)
        run = await submit(federation, MODEL, **ONE)
        client.gate.release()
        await until(lambda: committed(federation, run) == [1])
        await federation.server.runs.roll_back(run, 0)
        await until(lambda: federation.ledger.open_round_of(run) is not None)
        opened = federation.ledger.open_round_of(run).number
        again = await federation.server.runs.roll_back(run, 0)
        return again.undone, opened, federation.ledger.open_round_of(run).number

    undone, before, after = played(tmp_path, scenario)
    assert undone == ()
    assert before == after


@pytest.mark.long
def test_an_ended_run_is_paused_after_its_rollback(tmp_path):
    """Also after a restart; resumed, it does the missing rounds."""

    async def scenario(federation, agents):
        run = await straight(federation, agents, ONE)
        await federation.server.runs.roll_back(run, 1)
        row = federation.ledger.run(run)
        assert (row.state, row.ended_at, row.committed) == ("paused", None, 1)
        await agents.stop()
        await federation.stop()
        await federation.start()
        await agents.enrol("bob")
        client = Gated()
        client.gate.release(100)
        await agents.start("bob", client)
        await federation.server.runs.command(run, "resume")
        await federation.ended(run)
        return federation.ledger.run(run), standing(federation, run)

    row, stands = played(tmp_path, scenario)
    assert (row.state, row.committed) == ("finished", 3)
    assert stands == [1, 4, 5]


@pytest.mark.long
def test_undone_rounds_count_in_the_privacy_budget(tmp_path):
    """Every released model counts, so the budget is used up."""
    private = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "noise": "seed"}

    async def scenario(federation, agents):
        run = await rolled_back(federation, agents, ONE | {"privacy": private})
        return federation.ledger.run(run), federation.ledger.list_rounds(run)

    row, rows = played(tmp_path, scenario)
    spent = [r.privacy["epsilon"] for r in rows if r.state == "committed"]
    assert len(spent) == 3  # as many as the claim allows, including the undone one
    assert spent == sorted(set(spent))
    assert spent[-1] == pytest.approx(row.privacy["epsilon"])
    assert row.state == "finished"


def test_a_rollback_within_a_noise_tree_is_refused(tmp_path):
    """Another branch would release a client's update under less noise than accounted for."""
    private = {
        "mechanism": "dp_ftrl", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3,
        "restart_every": 4, "noise": "seed",
    }  # fmt: skip

    async def scenario(federation, agents):
        run = await submit(federation, MODEL, **ONE, privacy=private)
        with pytest.raises(UsageError, match="submit a new run from the model"):
            await federation.server.runs.roll_back(run, 0)

    played(tmp_path, scenario)


@pytest.mark.long
def test_memories_of_undone_rounds_are_not_used(tmp_path):
    """The client's next task names its last round that is not undone."""

    async def scenario(federation, agents):
        client = Gated()
        await agents.start("ann", client)
        spec = ONE | {"compression": {"up": {"name": "int8", "error_feedback": True}}}
        run = await submit(federation, MODEL, **spec)
        client.gate.release(2)
        await until(lambda: committed(federation, run) == [1, 2])
        assert federation.ledger.last_counted(run, "ann") == 2
        await federation.server.runs.roll_back(run, 1)
        counted = federation.ledger.last_counted(run, "ann")
        client.gate.release(100)
        await federation.ended(run)
        return counted, federation.ledger.last_counted(run, "ann")

    counted, last = played(tmp_path, scenario)
    assert counted == 1
    assert last == 5
