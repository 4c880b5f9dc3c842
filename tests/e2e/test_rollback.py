"""Runs that are rolled back: on a real server, with real clients, and across restarts."""

import threading

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from support.agents import Adder, played, result, submit, until

pytestmark = pytest.mark.e2e

ONE = {"rounds": 3, "cohort": {"goal": 1, "quorum": 1}}
MODEL = {"w": np.zeros(4, np.float32)}


class Gated(Adder):
    """Trains once for each time that it is let; another step in every model that it gets."""

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
    """A run that commits two rounds, goes back to the first, and then does the rest."""
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
    """The same run without going back."""
    client = Gated()
    await agents.start("ann", client)
    client.gate.release(100)
    run = await submit(federation, MODEL, **spec)
    await federation.ended(run)
    return run


@pytest.mark.parametrize(
    "spec",
    [
        ONE | {"strategy": {"name": "fedadam"}},
        ONE | {"strategy": {"name": "fedavgm"}, "compression": {"down": {"name": "int8"}}},
        ONE | {"cohort": {"mode": "buffered", "goal": 1, "concurrency": 1}},
    ],
    ids=["optimizer", "told", "buffered"],
)
def test_a_run_goes_on_from_exactly_the_state_it_went_back_to(tmp_path, spec):
    """Its last model has the bits of a run that never took the wrong turn."""

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


def test_the_open_round_is_given_up_first(tmp_path):
    """Its client is told to stop, its number is not used again, and the row says why."""

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


def test_going_back_twice_is_going_back_once(tmp_path):
    """The open round that followed the first time stays."""

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


def test_a_run_that_has_ended_comes_back_paused(tmp_path):
    """Also after a restart; resumed, it does the rounds that it lacks."""

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


def test_privacy_that_was_spent_stays_spent(tmp_path):
    """Every released model counts, also those that were undone: the budget has no more."""
    private = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "noise": "seed"}

    async def scenario(federation, agents):
        run = await rolled_back(federation, agents, ONE | {"privacy": private})
        return federation.ledger.run(run), federation.ledger.list_rounds(run)

    row, rows = played(tmp_path, scenario)
    spent = [r.privacy["epsilon"] for r in rows if r.state == "committed"]
    assert len(spent) == 3  # as many as the claim speaks of, the undone one included
    assert spent == sorted(set(spent))
    assert spent[-1] == pytest.approx(row.privacy["epsilon"])
    assert row.state == "finished"


def test_a_tree_of_noise_is_not_cut(tmp_path):
    """Another branch would show a client's part under more noise than was accounted for."""
    private = {
        "mechanism": "dp_ftrl", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3,
        "restart_every": 4, "noise": "seed",
    }  # fmt: skip

    async def scenario(federation, agents):
        run = await submit(federation, MODEL, **ONE, privacy=private)
        with pytest.raises(UsageError, match="submit a new run from the model"):
            await federation.server.runs.roll_back(run, 0)

    played(tmp_path, scenario)


def test_what_a_client_remembers_of_undone_rounds_does_not_count(tmp_path):
    """Its next task names the last round that still stands."""

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
