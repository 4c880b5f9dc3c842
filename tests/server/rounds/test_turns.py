"""Turns of runs over a real server's runs and fleet: what they cost, and what ends one."""

import asyncio

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.client_failures import ClientRules
from fedloom.server.fleet.sessions import Call, Hold, Session
from fedloom.server.planning.fair_share import Demand
from support.door import Door

CLIENTS = 2000


@pytest.fixture
def door(tmp_path):
    rules = ClientRules(failing_after=1, cool_off_s=600.0)
    with Door(tmp_path / "state", clients=rules) as door:
        yield door


async def _send(_message):
    """A stream that takes every message."""


async def attend(fleet, end, first=0):
    for number in range(first, end):
        call = Call(f"c{number:04}", None, asyncio.current_task())
        fleet.attend(Session(call, _send))


def submitted(door, tmp_path, count, goal):
    """Runs that wait for clients, in order."""
    cohort = {"goal": goal, "quorum": 1}
    return [door.submit(tmp_path, name=f"r{n}", cohort=cohort) for n in range(count)]


@pytest.mark.long
def test_an_event_does_not_count_all_clients_for_each_run(door, tmp_path):
    """All runs wait for the same clients; one client fails, another leaves."""
    fleet, runs = door.contexts.fleet, door.runs
    ids = submitted(door, tmp_path, 20, 1200)
    door.call_async(attend, fleet, CLIENTS)
    asked, study_of = [], fleet.study_of

    def counted(client):
        asked.append(client)
        return study_of(client)

    async def events():
        await asyncio.sleep(0.1)
        driver = runs.get(ids[0]).round
        busy = [session.client for session in fleet if session.task]
        assert len(busy) == 1200  # the first run has its round, the others wait
        fleet.study_of = counted
        for client in busy[:3]:
            driver.client_failed(client, "x")
        fleet.leave(fleet.get("c1999"))
        await asyncio.sleep(0.1)  # the runs that wait are woken

    door.call_async(events)
    assert 0 < len(asked) <= 8 * CLIENTS


def test_a_run_claims_clients_only_while_enough_may_be_drawn(door, tmp_path):
    """Each reason not to draw one of three clients ends the claim at once; its end renews it."""
    fleet, cool_offs = door.contexts.fleet, door.runs.cool_offs
    [run] = submitted(door, tmp_path, 1, 3)

    async def changes():
        demand = door.runs.get(run).demand
        await attend(fleet, 1)
        fleet.occupy("c0000", ("other", 1), None)  # otherwise the round would open
        await attend(fleet, 3, first=1)
        session, seen = fleet.get("c0001"), [demand()]
        for begin, end in (
            (lambda: fleet.hold("c0001", Hold.DRAIN), lambda: fleet.release("c0001")),
            (lambda: fleet.assign("c0001", "onco"), lambda: fleet.assign("c0001", "")),
            (lambda: fleet.leave(session), lambda: fleet.attend(session)),
            (lambda: cool_offs.failed("c0001", {}), lambda: cool_offs.release("c0001")),
            (lambda: fleet.rest("c0001", 60.0), lambda: fleet.rest("c0001", 0.001)),
        ):
            begin()
            seen.append(demand())
            end()
            await asyncio.sleep(0.02)
            seen.append(demand())
        return seen

    claim = Demand(waiting=True, clients=3)
    assert door.call_async(changes) == [claim, *[Demand(), claim] * 5]


def test_a_run_whose_clients_decline_keeps_them_from_no_other(door, tmp_path):
    """It would keep them until its deadline, in each round again, whatever its priority."""
    cohort = {"goal": 2, "quorum": 1, "deadline_s": 3600.0}
    high = door.submit(tmp_path, name="high", priority=5, cohort=cohort)
    low = door.submit(tmp_path, name="low", cohort=cohort)

    async def declined():
        await attend(door.contexts.fleet, 2)
        await asyncio.sleep(0.1)
        before = [door.runs.get(run).round.engine.cohort.at_work for run in (high, low)]
        for client in ("c0000", "c0001"):
            no = fleet_pb2.OfferReply(accepted=False, reason="not for this run")
            door.runs.get(high).round.client_replied(client, no)
        await asyncio.sleep(0.1)
        after = [door.runs.get(run).round.engine.cohort.at_work for run in (high, low)]
        return before, after

    assert door.call_async(declined) == ([2, 0], [0, 2])
