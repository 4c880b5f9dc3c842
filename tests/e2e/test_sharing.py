"""Runs that share clients: shares, priorities, large cohorts, and the queue."""

import asyncio

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from support.agents import Adder, Held, played, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

MODEL = {"w": np.zeros(4, np.float32)}


def cohort(goal):
    return {"goal": goal, "quorum": 1, "patience_s": 60.0, "deadline_s": 600.0}


def tasks(federation, run):
    """Tasks that a run gave."""
    rounds = federation.ledger.list_rounds(run)
    return sum(len(federation.ledger.cohort(run, each.number)) for each in rounds)


async def ask(federation, method, *path, **given):
    """Call the API from a thread, as the server uses the test's event loop."""
    control = Control(federation.directory)
    return await asyncio.to_thread(getattr(control, method), *path, **given)


async def start(agents, *names):
    for name in names:
        await agents.start(name, Adder())


@pytest.mark.long
def test_two_runs_get_tasks_by_their_shares(tmp_path):
    """Both always need the same two clients; the one with share 2 has two rounds of three."""

    async def scenario(federation, agents):
        slow = await submit(federation, MODEL, name="one", rounds=100, cohort=cohort(2))
        fast = await submit(federation, MODEL, name="two", rounds=100, cohort=cohort(2), share=2.0)
        await start(agents, "ann", "bob")
        runs = federation.server.runs
        await until(lambda: tasks(federation, slow) >= 16)
        for run in (slow, fast):
            await runs.command(run, "stop")
        return tasks(federation, slow), tasks(federation, fast)

    one, two = played(tmp_path, scenario)
    assert abs(two / 2 - one) <= 2 / 2 + 2, (one, two)  # a cohort of each, by its share


@pytest.mark.long
def test_a_run_that_needs_every_client_is_not_starved(tmp_path):
    """A run of single clients would always take one before all three are idle."""

    async def scenario(federation, agents):
        small = await submit(federation, MODEL, name="small", rounds=500, cohort=cohort(1))
        await start(agents, "ann", "bob", "cid")
        await until(lambda: tasks(federation, small) >= 5)
        large = await submit(federation, MODEL, name="large", rounds=4, cohort=cohort(3))
        before = tasks(federation, small)
        await federation.ended(large)
        after = tasks(federation, small)
        await federation.server.runs.command(small, "stop")
        return after - before, federation.ledger.run(large).state

    meanwhile, state = played(tmp_path, scenario)
    assert state == "finished"
    assert meanwhile <= 4 * 3 + 3 + 1  # as many tasks as the large one, within a cohort of each


@pytest.mark.long
def test_a_higher_priority_is_served_first_and_interrupts_nothing(tmp_path):
    """While it runs, a run of a lower priority opens no round with the clients that it needs."""

    async def scenario(federation, agents):
        ledger = federation.ledger
        low = await submit(federation, MODEL, name="low", rounds=500, cohort=cohort(1))
        await start(agents, "ann", "bob")
        await until(lambda: tasks(federation, low) >= 3)
        high = await submit(federation, MODEL, name="high", rounds=5, cohort=cohort(2), priority=5)
        await federation.ended(high)
        await until(lambda: ledger.list_rounds(low)[-1].opened_at > ledger.run(high).ended_at)
        await federation.server.runs.command(low, "stop")
        rounds, times = ledger.list_rounds(low), [r.opened_at for r in ledger.list_rounds(high)]
        between = [r.number for r in rounds if times[0] <= r.opened_at < times[-1]]
        return between, [r.state for r in rounds[:-1]], ledger.run(high).state

    between, states, state = played(tmp_path, scenario)
    assert (between, state) == ([], "finished")
    assert set(states) == {"committed"}


@pytest.mark.long
def test_a_run_that_cannot_be_served_blocks_no_other(tmp_path):
    """Its cohort is larger than the fleet: the others go on, whatever its priority."""

    async def scenario(federation, agents):
        huge = await submit(
            federation, MODEL, name="huge", rounds=1, cohort=cohort(9), priority=100
        )
        await start(agents, "ann", "bob")
        usual = await submit(federation, MODEL, name="usual", rounds=3, cohort=cohort(2))
        await federation.ended(usual)
        await federation.server.runs.command(huge, "stop")
        return federation.ledger.run(usual).state

    assert played(tmp_path, scenario) == "finished"


@pytest.mark.long
def test_a_changed_priority_holds_at_once_and_after_a_restart(tmp_path):
    """The run that waited takes the next idle clients."""

    async def scenario(federation, agents):
        first = await submit(federation, MODEL, name="first", rounds=100, cohort=cohort(2))
        second = await submit(federation, MODEL, name="second", rounds=2, cohort=cohort(2))
        preview = await ask(
            federation, "post", "runs", second, "priority", body={"priority": 3}, preview="true"
        )
        done = await ask(federation, "post", "runs", second, "priority", body={"priority": 3})
        again = await ask(federation, "post", "runs", second, "priority", body={"priority": 3})
        await federation.stop()
        await federation.start()
        await start(agents, "ann", "bob")
        await federation.ended(second)
        opened = [r.opened_at for r in federation.ledger.list_rounds(second)]
        others = [r.opened_at for r in federation.ledger.list_rounds(first)]
        await federation.server.runs.command(first, "stop")
        trail = await ask(federation, "get", "audit", action="run.priority")
        return preview, done, again, opened, others, trail

    preview, done, again, opened, others, trail = played(tmp_path, scenario)
    assert (preview["changed"], preview["priority"]) == (False, 0)
    assert (done["changed"], done["priority"], done["share"]) == (True, 3, 1.0)
    assert (again["changed"], "nothing changes" in again["consequence"]) == (False, True)
    assert max(opened) <= min(others, default=max(opened))
    assert [entry["detail"] for entry in trail["entries"]] == ['{"priority":3}']


def names(found):
    return [(r["name"], r["state"], r["place"]) for r in found["runs"]]


@pytest.mark.long
def test_runs_wait_in_a_queue_and_start_by_priority(tmp_path):
    """One runs at a time; a queued one can be moved and stopped, and a restart changes nothing."""

    async def scenario(federation, agents):
        held = Held()
        await agents.start("ann", held)
        seen = []
        for name in ("a", "b", "c", "d"):
            await submit(federation, MODEL, name=name, rounds=1, cohort=cohort(1))
        ids = {r["name"]: r["id"] for r in (await ask(federation, "get", "runs"))["runs"]}
        seen.append(names(await ask(federation, "get", "runs")))
        await ask(federation, "post", "runs", ids["d"], "priority", body={"priority": 1})
        await ask(federation, "post", "runs", ids["b"], "stop")
        seen.append(names(await ask(federation, "get", "runs")))
        await federation.stop()
        await federation.start()
        seen.append(names(await ask(federation, "get", "runs")))
        detail = await ask(federation, "get", "runs", ids["c"])
        held.let_go.set()
        await until(lambda: federation.ledger.run(ids["c"]).ended_at)
        ended = [federation.ledger.run(ids[name]).ended_at for name in ("a", "d", "c")]
        seen.append(names(await ask(federation, "get", "runs")))
        return seen, detail, ended

    seen, detail, ended = played(tmp_path, scenario, max_running=1)
    queued = [("a", "running", None), ("b", "queued", 1), ("c", "queued", 2), ("d", "queued", 3)]
    moved = [("a", "running", None), ("b", "stopped", None), ("c", "queued", 2), ("d", "queued", 1)]
    assert seen[0] == queued
    assert seen[1] == seen[2] == moved
    assert (detail["place"], detail["live"]) == (2, None)
    assert ended == sorted(ended)
    assert [each[1] for each in seen[3]] == ["finished", "stopped", "finished", "finished"]


@pytest.mark.long
def test_a_paused_run_frees_its_place(tmp_path):
    """Otherwise a run that paused by itself at night would hold up all others."""

    async def scenario(federation, agents):
        first = await submit(federation, MODEL, name="first", rounds=2, cohort=cohort(1))
        second = await submit(federation, MODEL, name="second", rounds=2, cohort=cohort(1))
        assert federation.ledger.run(second).state == "queued"
        await federation.server.runs.command(first, "pause")
        async with asyncio.timeout(PATIENCE_S):
            while federation.ledger.run(second).state != "running":
                await asyncio.sleep(0.01)
        await ask(federation, "post", "runs", first, "resume")
        both = [federation.ledger.run(run).state for run in (first, second)]
        await start(agents, "ann")
        await federation.ended(first)
        await federation.ended(second)
        return both

    assert played(tmp_path, scenario, max_running=1) == ["running", "running"]


@pytest.mark.long
def test_a_run_has_the_clients_of_its_study_alone(tmp_path):
    """Also after a client has moved, and after a restart; a task under way goes on."""

    async def scenario(federation, agents):
        for name in ("ann", "bob", "cid"):
            await agents.enrol(name)
        for name, study in (("ann", "cardio"), ("bob", "onco")):
            await ask(federation, "post", "clients", name, "study", body={"study": study})
        await federation.stop()
        await federation.start()
        await start(agents, "ann", "bob", "cid")
        runs = {}
        for study in ("cardio", "onco", ""):
            runs[study] = await submit(
                federation, MODEL, name="run", rounds=2, cohort=cohort(1), study=study
            )
        for run in runs.values():
            await federation.ended(run)
        both = await submit(
            federation, MODEL, name="both", rounds=1, cohort=cohort(2), study="cardio"
        )
        live = (await ask(federation, "get", "runs", both))["live"]
        await ask(federation, "post", "clients", "bob", "study", body={"study": "cardio"})
        await federation.ended(both)
        members = {
            run: {m.client for n in (1, 2) for m in federation.ledger.cohort(run, n)}
            for run in (*runs.values(), both)
        }
        return list(members.values()), live

    members, live = played(tmp_path, scenario)
    assert members == [{"ann"}, {"bob"}, {"cid"}, {"ann", "bob"}]
    assert (live["clients_available"], live["round"]["available"]) == (1, 1)
