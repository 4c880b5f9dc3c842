"""Clients at rest, and clients on hold."""

import asyncio

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.client_failures import ClientRules
from fedloom.server.cool_off import CoolOffs
from fedloom.server.fleet import sessions as fleet_module
from fedloom.server.fleet.sessions import Call, Fleet, Hold, Session
from fedloom.server.queries.gauges import states
from support.patience import PATIENCE_S


class Run:
    """A run that records its notifications."""

    def __init__(self):
        self.came = []

    def client_available(self, client):
        self.came.append(client)

    def client_left(self, client):
        pass

    def claims(self, client):
        return False


async def attend(fleet, name):
    async def send(message):
        pass

    session = Session(Call(name, None, asyncio.current_task()), send)
    fleet.attend(session)
    return session


def test_resting_client_is_not_announced():
    """Not after reconnecting, and not to a new run."""

    async def main():
        fleet, run = Fleet(), Run()
        session = await attend(fleet, "a")
        fleet.rest("a", 600.0)
        fleet.listen(run)
        fleet.leave(session)
        await attend(fleet, "a")
        fleet.free("a", ("run", 1))
        assert (run.came, fleet.available()) == ([], [])
        fleet.rest("a", 0.01)
        async with asyncio.timeout(PATIENCE_S):
            while not run.came:
                await asyncio.sleep(0.005)
        assert (run.came, fleet.available()) == (["a"], ["a"])

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan"), float("inf")])
def test_invalid_rest_is_ignored(seconds):
    async def main():
        fleet = Fleet()
        await attend(fleet, "a")
        fleet.rest("a", seconds)
        assert fleet.available() == ["a"]

    asyncio.run(main())


def test_rest_is_limited_to_a_day(monkeypatch):
    monkeypatch.setattr(fleet_module, "LONGEST_REST_S", 0.01)

    async def main():
        fleet = Fleet()
        await attend(fleet, "a")
        fleet.rest("a", 1e9)
        assert fleet.available() == []
        async with asyncio.timeout(PATIENCE_S):
            while not fleet.available():
                await asyncio.sleep(0.005)

    asyncio.run(main())


def test_held_client_is_not_given_to_a_run():
    """Quarantine cancels its task; drain lets it finish. On release it is announced."""

    async def main():
        fleet, run = Fleet(), Run()
        fleet.listen(run)
        for name in ("a", "b", "c"):
            await attend(fleet, name)
        assert fleet.occupy("b", ("run", 1), run)
        fleet.hold("a", Hold.QUARANTINE)
        fleet.hold("b", Hold.DRAIN)
        assert fleet.available() == ["c"]
        assert not fleet.occupy("a", ("run", 1), run)
        assert fleet.occupy("b", ("run", 1), run)
        fleet.check("b")
        with pytest.raises(Refusal) as caught:
            fleet.check("a")
        assert caught.value.code is Code.QUARANTINED
        counts = {"available": 1, "working": 0, "resting": 0, "quarantine": 1, "drain": 1}
        counts["cooling"] = 0
        cool_offs = CoolOffs(ClientRules(failing_after=1, cool_off_s=60.0), fleet.announce)
        assert states(fleet, cool_offs) == counts
        fleet.rest("c", 60)
        assert states(fleet, cool_offs) == counts | {"available": 0, "resting": 1}
        cool_offs.failed("c", {})
        assert states(fleet, cool_offs) == counts | {"available": 0, "cooling": 1}
        run.came.clear()
        fleet.release("a")
        fleet.release("a")
        assert (run.came, fleet.available()) == (["a"], ["a"])
        fleet.release("b")
        assert run.came == ["a"]
        assert states(fleet, cool_offs)["working"] == 1

    asyncio.run(main())


def test_a_client_that_was_told_to_leave_gets_no_offers():
    """Neither from runs that know it nor from new ones; a connection that it begins anew counts."""

    async def main():
        fleet, run, owner = Fleet(), Run(), Run()
        session = await attend(fleet, "a")
        assert fleet.undrawn({"a"}.__contains__) == 0
        fleet.dismiss(session)
        fleet.listen(run)
        fleet.announce("a")
        assert (run.came, fleet.available(), fleet.connected()) == ([], [], [])
        assert list(fleet.reachable()) == []
        assert not fleet.occupy("a", ("run", 1), owner)
        fleet.leave(session)
        await attend(fleet, "a")
        assert (run.came, fleet.available()) == (["a"], ["a"])

    asyncio.run(main())


def test_clients_that_check_in_are_set_aside_until_a_draw_is_due():
    """Only those that wait: not one that works, has left, or came back with a stream."""

    async def main():
        fleet, owner = Fleet(), Run()

        async def check_in(name):
            session = Session(Call(name, None, asyncio.current_task()), send, checks_in=True)
            fleet.attend(session)
            return session

        async def send(message):
            pass

        sessions = {name: await check_in(name) for name in "abcd"}
        await attend(fleet, "s")
        everyone = "abcds".__contains__
        assert fleet.undrawn(everyone) == 4
        assert fleet.undrawn("as".__contains__) == 1
        fleet.drawing = True
        assert fleet.undrawn(everyone) == 0
        fleet.drawing = False
        assert fleet.occupy("a", ("run", 1), owner)
        fleet.leave(sessions["b"])
        fleet.leave(sessions["c"])
        await attend(fleet, "c")
        assert fleet.undrawn(everyone) == 1
        freed = []
        fleet.freed = freed.append
        fleet.free("a", ("run", 1))
        assert freed == [sessions["a"]]
        assert (fleet.checks_in("a"), fleet.checks_in("c")) == (True, False)

    asyncio.run(main())
