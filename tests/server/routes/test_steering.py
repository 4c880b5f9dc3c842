"""Actions on a run over the API: at most once, with a description of the effect."""

import asyncio
import time

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UsageError
from fedloom.strategies.privacy import accounting
from support.agents import Adder, Agents, Held, played, result, submit, until
from support.door import SPEC, Door
from support.federation import Federation
from support.patience import PATIENCE_S


@pytest.fixture
def door(tmp_path):
    """A server with a run whose round waits for clients."""
    with Door(tmp_path / "state") as door:
        door.run = door.submit(tmp_path)
        yield door


def act(door, action, body=None, query=""):
    status, done = door.ask("POST", f"/runs/{door.run}/{action}{query}", body or {})
    assert status == 200, done
    return done


def wait(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("action", "state", "words"),
    [
        ("pause", "running", "opens no further round until it is resumed. The deadline of round 1"),
        ("stop", "running", "ends permanently; its last model stays. Round 1 is dropped"),
        ("abort", "running", "drops round 1 with 0 updates and opens another"),
        ("retry?x", "running", "is already open with the same model: nothing changes"),
        ("resume", "running", "is already running: nothing changes"),
    ],
)
def test_preview_describes_and_does_nothing(door, action, state, words):
    """Nothing changes, and nothing is audited."""
    head = door.contexts.ledger.trail.head()
    done = act(door, action.removesuffix("?x"), query="?preview=true")
    assert words in done["consequence"]
    assert (done["changed"], done["state"]) == (False, state)
    assert door.contexts.ledger.trail.head() == head


def test_repeated_action_is_no_error(door):
    """Of pause, resume and stop; a finished run refuses them."""
    for action, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        first, again = act(door, action), act(door, action)
        assert (first["changed"], again["changed"]) == (True, False)
        assert first["state"] == again["state"] == state


def test_an_action_on_a_named_round_is_done_once(door):
    """The second abort of round 1 does not drop round 2."""
    first = act(door, "abort", {"round": 1, "reason": "mislabelled"})
    again = act(door, "abort", {"round": 1})
    assert (first["changed"], again["changed"]) == (True, False)
    assert "Round 1 is over; round 2 is open" in again["consequence"]
    assert door.runs.get(door.run).round.plan.number == 2


@pytest.mark.long
def test_a_request_with_an_id_is_done_once(door):
    """The repeat gets the same answer, and no other round is dropped."""
    body = {"request": "from-the-console-1"}
    first = act(door, "abort", body)
    assert act(door, "abort", body) == first
    assert door.runs.get(door.run).round.plan.number == 2
    act(door, "abort", {"request": "from-the-console-2"})
    assert door.runs.get(door.run).round.plan.number == 3


def test_retry_of_a_paused_run(door):
    """After too many abandoned rounds, one call opens another."""
    for number in (1, 2, 3):
        wait(lambda number=number: door.runs.get(door.run).engine.progress.opened == number)
        act(door, "abort", {"round": number})
    wait(lambda: door.contexts.ledger.run(door.run).state == "paused")
    done = act(door, "retry")
    assert (done["state"], done["changed"]) == ("running", True)
    assert door.runs.get(door.run).round.plan.number == 4
    assert act(door, "retry")["changed"] is False


def test_a_goal_is_changed_for_the_open_round_and_later_ones(door):
    """Also after a restart, from the ledger; invalid numbers change nothing."""
    done = act(door, "goal", {"goal": 1})
    assert "a goal of 1 updates from now on" in done["consequence"]
    engine = door.runs.get(door.run).round.engine
    assert (engine.config.goal, engine.config.quorum) == (1, 1)
    assert act(door, "goal", {"goal": 1})["changed"] is False
    assert door.contexts.ledger.run(door.run).goals == [1, 1]
    for bad in ({"goal": 10_000}, {"goal": 2, "quorum": 3}):
        status, fault = door.ask("POST", f"/runs/{door.run}/goal", bad)
        assert (status, fault["error"]["kind"]) == (409, "conflict"), fault
    assert door.contexts.ledger.run(door.run).goals == [1, 1]


def test_a_quorum_that_the_aggregation_cannot_use_is_refused(tmp_path):
    """As at submission: every round of the run would be abandoned."""
    with Door(tmp_path / "state") as door:
        krum = {"name": "krum", "num_byzantine": 0}
        cohort = {"goal": 4, "quorum": 3}
        door.run = door.submit(tmp_path, aggregation=krum, weighting="uniform", cohort=cohort)
        status, fault = door.ask("POST", f"/runs/{door.run}/goal", {"goal": 4, "quorum": 2})
        assert (status, "at least 3" in fault["error"]["message"]) == (409, True)
        assert act(door, "goal", {"goal": 3, "quorum": 3})["changed"] is True


@pytest.mark.long
@pytest.mark.e2e
def test_a_round_is_not_closed_below_the_aggregations_minimum(tmp_path):
    """The round continues."""

    async def scenario(federation, agents):
        slow = Held()
        await agents.start("ann", Adder())
        await agents.start("bob", Adder())
        await agents.start("eve", slow)
        run = await submit(
            federation, {"w": np.zeros(4, np.float32)}, rounds=1, weighting="uniform",
            aggregation={"name": "krum", "num_byzantine": 0}, cohort={"goal": 3, "quorum": 3},
        )  # fmt: skip
        await until(lambda: len(federation.ledger.accepted(run, 1)) == 2)
        post = Control(federation.directory).post
        with pytest.raises(UsageError, match="at least 3 accepted updates"):
            await asyncio.to_thread(post, "runs", run, "close", body={})
        slow.let_go.set()
        await federation.ended(run)
        return federation.ledger.run(run).state

    assert played(tmp_path, scenario) == "finished"


@pytest.mark.long
@pytest.mark.e2e
def test_only_a_failed_round_raises_an_alert(tmp_path):
    """Not one that an operator aborted."""

    async def scenario(federation, agents):
        control, slow = Control(federation.directory), Held()
        await agents.start("ann", Adder())
        await agents.start("bob", slow)

        async def abandoned(run):
            def over():
                row = federation.ledger.round(run, 1)
                return row and row.state == "abandoned"

            await until(over)
            told = await asyncio.to_thread(control.get, "overview")
            found = await asyncio.to_thread(control.get, "runs", run, "rounds", "1")
            of_it = [a["what"] for a in told["alerts"] if a["link"] == f"/runs/{run}/rounds/1"]
            return found["cause"], of_it

        model, cohort = {"w": np.zeros(4, np.float32)}, {"goal": 2, "quorum": 2}
        run = await submit(federation, model, cohort={**cohort, "deadline_s": 60.0})
        await until(slow.begun.is_set)
        await asyncio.to_thread(control.post, "runs", run, "abort", body={"reason": "wrong data"})
        assert await abandoned(run) == ("stopped", [])
        await asyncio.to_thread(control.post, "runs", run, "stop", body={})
        await federation.ended(run)

        late = await submit(federation, model, cohort={**cohort, "deadline_s": 2.0})
        cause, [alert] = await abandoned(late)
        assert (cause, "quorum not reached" in alert) == ("quorum", True)

    played(tmp_path, scenario)


def test_missing_extra_is_named(tmp_path, monkeypatch):
    """Such as the accountant; with settings of which no claim is known yet."""

    def missing():
        raise accounting.MissingAccountant(accounting.MISSING)

    monkeypatch.setattr(accounting, "library", missing)
    with Door(tmp_path / "state") as door:
        private = {"clip": 1.0, "noise_multiplier": 1.0371, "delta": 1e-3, "noise": "seed"}
        spec = {**SPEC, "weighting": "uniform", "evaluate": False, "privacy": private}
        status, fault = door.ask("POST", "/runs/describe", {"spec": spec})
        assert (status, fault["error"]["kind"]) == (422, "usage")
        assert "fedloom[privacy]" in fault["error"]["message"]


def test_a_private_run_keeps_its_goal(tmp_path):
    """The privacy claim depends on them."""
    with Door(tmp_path / "state") as door:
        private = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "noise": "seed"}
        door.run = door.submit(tmp_path, privacy=private)
        status, fault = door.ask("POST", f"/runs/{door.run}/goal", {"goal": 1})
        assert (status, "claim depends on it" in fault["error"]["message"]) == (409, True)


@pytest.mark.long
@pytest.mark.e2e
def test_a_round_closes_at_its_new_goal_after_a_restart(tmp_path):
    """Its updates suffice; the sum is on the grid of the old goal."""

    async def main():
        (tmp_path / "server").mkdir()
        federation = await Federation(tmp_path / "server").start()
        agents = Agents(federation, tmp_path)
        slow = Held()
        model = {"w": np.zeros(4, np.float32)}
        try:
            async with asyncio.timeout(3 * PATIENCE_S):
                await agents.start("ann", Adder())
                await agents.start("bob", slow)
                cohort = {"goal": 2, "quorum": 2, "patience_s": 60.0}
                run = await submit(federation, model, cohort=cohort)
                await until(lambda: len(federation.ledger.accepted(run, 1)) == 1)
                post = Control(federation.directory).post
                body = {"quorum": 1}
                await asyncio.to_thread(post, "runs", run, "goal", body=body)
                await federation.stop()
                await federation.start()
                assert federation.server.runs.get(run).position.goals == (2, 1)
                await asyncio.to_thread(post, "runs", run, "goal", body={"goal": 1})
                await federation.ended(run)
                return result(federation, run)["w"].tolist()
        finally:
            slow.let_go.set()
            await agents.stop()
            await federation.stop()

    assert asyncio.run(main()) == [1.0] * 4
