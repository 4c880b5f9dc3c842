"""Clients that ask to be left alone for a while, and those that operators hold."""

import asyncio

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.fleet import sessions as fleet_module
from fedloom.server.fleet.sessions import Call, Fleet, Hold, Session
from fedloom.server.queries.gauges import states
from support.patience import PATIENCE_S


class Run:
    """A run that notes whom it is told of."""

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


def test_a_resting_client_is_announced_to_nobody_until_it_has_rested():
    """Also where it reconnects meanwhile, and where a run begins meanwhile."""

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
def test_no_rest_is_not_a_rest_for_ever(seconds):
    """A client's word is not trusted beyond a day."""

    async def main():
        fleet = Fleet()
        await attend(fleet, "a")
        fleet.rest("a", seconds)
        assert fleet.available() == ["a"]

    asyncio.run(main())


def test_a_rest_is_a_day_at_most(monkeypatch):
    """However long it is asked for."""
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


def test_a_held_client_is_not_given_to_a_run_and_is_told_of_when_it_is_released():
    """Nobody takes one in quarantine; one that is drained ends what it does."""

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
        assert states(fleet) == counts
        fleet.rest("c", 60)
        assert states(fleet) == counts | {"available": 0, "resting": 1}
        run.came.clear()
        fleet.release("a")
        fleet.release("a")
        assert (run.came, fleet.available()) == (["a"], ["a"])
        fleet.release("b")
        assert run.came == ["a"]
        assert states(fleet)["working"] == 1

    asyncio.run(main())
