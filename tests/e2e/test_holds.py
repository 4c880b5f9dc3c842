"""Quarantined and drained clients: at once, across restarts, without effect on other clients."""

import asyncio

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import Code, Refusal
from support.agents import Adder, Held, played, result, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

MODEL = {"w": np.zeros(4, np.float32)}
TWO = {"rounds": 1, "cohort": {"goal": 2, "quorum": 1, "patience_s": 60.0}}
ONE = {"rounds": 1, "cohort": {"goal": 1, "quorum": 1, "patience_s": 60.0}}


def act(federation, name, what, **query):
    """Call the API from a thread, as the server uses the test's event loop."""
    post = Control(federation.directory).post
    return asyncio.to_thread(post, "clients", name, what, body={"reason": "why not"}, **query)


async def both_at_work(federation, agents):
    """A round of ann, who adds, and bob, who waits for the test; returns bob and the run."""
    slow = Held(step=100.0)
    await agents.start("ann", Adder())
    await agents.start("bob", slow)
    run = await submit(federation, MODEL, **TWO)
    assert await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
    return slow, run


@pytest.mark.long
def test_quarantine_cancels_a_clients_task(tmp_path):
    """The round continues without it; the member's phase is `failed`."""

    async def scenario(federation, agents):
        slow, run = await both_at_work(federation, agents)
        seen = await act(federation, "bob", "quarantine", preview="true")
        assert federation.ledger.holds() == {}
        done = await act(federation, "bob", "quarantine")
        again = await act(federation, "bob", "quarantine")
        slow.let_go.set()
        await federation.ended(run)
        members = federation.ledger.members(run, 1)
        return seen, done, again, members, result(federation, run)["w"].copy()

    seen, done, again, members, model = played(tmp_path, scenario)
    assert seen["changed"] is False
    assert done["consequence"] == seen["consequence"]
    assert "is cancelled" in done["consequence"]
    assert (done["hold"], done["changed"], done["hold_reason"]) == ("quarantine", True, "why not")
    assert (again["changed"], "nothing changes" in again["consequence"]) == (False, True)
    assert [(m.client, m.phase) for m in members] == [("ann", "reported"), ("bob", "failed")]
    assert model.tolist() == [1.0] * 4


@pytest.mark.long
def test_a_round_does_not_wait_for_a_revoked_client(tmp_path):
    """The grace period applies to lost connections only."""

    async def scenario(federation, agents):
        slow, run = await both_at_work(federation, agents)
        await until(lambda: len(federation.ledger.accepted(run, 1)) == 1)
        await act(federation, "bob", "revoke")
        slow.let_go.set()
        with pytest.raises(Refusal) as caught:
            await agents.tasks.pop("bob")
        await federation.ended(run)
        return caught.value.code, federation.ledger.members(run, 1), result(federation, run)["w"]

    code, members, model = played(tmp_path, scenario)
    assert code is Code.REVOKED
    assert [(m.client, m.phase) for m in members] == [("ann", "reported"), ("bob", "failed")]
    assert model.tolist() == [1.0] * 4


@pytest.mark.long
def test_a_quarantined_client_is_asked_only_after_its_release(tmp_path):
    """Also after a restart; a run waits instead of asking it."""

    async def scenario(federation, agents):
        await agents.start("bob", Adder(step=7.0))
        await act(federation, "bob", "quarantine")
        run = await submit(federation, MODEL, **ONE)
        assert federation.contexts.fleet.available() == []
        await federation.stop()
        await federation.start()
        await until(lambda: federation.contexts.fleet.get("bob") is not None)  # it reconnects
        assert federation.ledger.open_round_of(run) is None
        assert federation.contexts.fleet.available() == []
        await act(federation, "bob", "release")
        await federation.ended(run)
        return result(federation, run)["w"].copy()

    assert played(tmp_path, scenario).tolist() == [7.0] * 4


@pytest.mark.long
def test_a_drained_client_finishes_its_task_and_gets_no_other(tmp_path):
    """Its update counts; the next round waits for another client."""

    async def scenario(federation, agents):
        slow = Held()
        await agents.start("bob", slow)
        run = await submit(federation, MODEL, **ONE | {"rounds": 2})
        await asyncio.to_thread(slow.begun.wait, 20)
        done = await act(federation, "bob", "drain")
        slow.let_go.set()
        await until(lambda: len(federation.ledger.accepted(run, 1)) == 1)
        await until(lambda: federation.ledger.run(run).committed == 1)
        available = federation.contexts.fleet.available()
        await agents.start("ann", Adder(step=10.0))
        await federation.ended(run)
        members = federation.ledger.members(run, 2)
        return done, available, [m.client for m in members], result(federation, run)["w"].copy()

    done, available, second, model = played(tmp_path, scenario)
    assert "finishes its task" in done["consequence"]
    assert available == []
    assert second == ["ann"]
    assert model.tolist() == [11.0] * 4


@pytest.mark.long
def test_a_drained_client_that_reconnects_may_finish_its_task(tmp_path):
    """A lost connection does not lose its work."""

    async def scenario(federation, agents):
        slow = Held()
        await agents.start("bob", slow)
        run = await submit(federation, MODEL, **ONE)
        await asyncio.to_thread(slow.begun.wait, 20)
        await act(federation, "bob", "drain")
        await agents.stop("bob")
        slow.let_go.set()
        await agents.start("bob", Adder())
        await federation.ended(run)
        return result(federation, run)["w"].copy()

    assert played(tmp_path, scenario).tolist() == [1.0] * 4
