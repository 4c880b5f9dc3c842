"""Devices that check in, beside devices that hold a stream: real agents and a real server."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedloom.client import Agent
from fedloom.client.agent.next_check_in import FILE
from fedloom.client.state.health_file import read_health
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import Opened, Round, RoundConfig, RoundKind, Wake
from fedloom.server.ledger.directory import CheckInCounts
from fedloom.server.planning.spec import parse
from support.agents import Adder, Held, played, result, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros(3, np.float32)}
NOBODY = CheckInCounts()
RULES = {"every_s": 1.2, "hold_s": 0.4}
SLOW = {"every_s": 3600.0, "hold_s": 0.4}
"""Who leaves does not come back within a test."""


async def enrol(agents, *names):
    """Devices that check in."""
    for name in names:
        await agents.enrol(name)
        agents.configs[name] = replace(agents.configs[name], attendance="check-in")


def health(agents, name):
    return read_health(agents.configs[name].state_dir)


MASKED = {
    "rounds": 2, "max_abs": 1.0, "weighting": "uniform", "cohort": {"goal": 5, "quorum": 5},
    "masking": {"group": 5, "min_group": 3},
}  # fmt: skip


def members(federation, run, number):
    return [row.client for row in federation.ledger.cohort(run, number)]


@pytest.mark.long
def test_devices_that_check_in_share_rounds_with_streams_and_leave(tmp_path):
    """Two rounds need all five; their sum has the bits of these five; then those two are left."""
    steps = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0, "e": 16.0}

    async def scenario(federation, agents):
        await enrol(agents, "c", "d", "e")
        for name, step in steps.items():
            await agents.start(name, Adder(step))
        run = await submit(federation, ZEROS, rounds=2, cohort={"goal": 5, "quorum": 5})
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], np.float32(2 * 31 / 5))
        for number in (1, 2):
            assert set(members(federation, run, number)) == set(steps)
            rows = federation.ledger.cohort(run, number)
            assert {row.phase for row in rows} == {"reported"}
        fleet = federation.contexts.fleet
        await until(lambda: {session.client for session in fleet} == {"a", "b"})
        await until(lambda: federation.contexts.check_in_counts.get("", NOBODY).expected == 3)
        assert federation.contexts.check_in_counts[""].missing == 0
        assert federation.refusals() == []
        await until(lambda: all(health(agents, name).due_at for name in "cde"))
        assert all(health(agents, name).alive for name in steps)

    played(tmp_path, scenario, check_in=RULES)


def drawn(run_values, names, goal, **settings):
    """Whom the engine draws if all these clients are there when it begins; without a server."""
    select = parse(run_values).select(1, RoundKind.TRAIN, None)
    engine = Round(RoundConfig(goal=goal, **settings), select=select, now=0.0, available=names)
    return next(list(e.cohort) for e in engine.handle(Wake(), 0.0) if isinstance(e, Opened))


VALUES = {
    "name": "test", "rounds": 1, "evaluate": False, "seed": 7,
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}, "cohort": {"goal": 5},
}  # fmt: skip


@pytest.mark.long
def test_the_draw_does_not_depend_on_who_came_first(tmp_path):
    """Whatever the order of twelve, of which three hold a stream, the same five are drawn.

    The others leave with a time to come next. With `goal` devices the round could have opened
    earlier, with those that came first.
    """
    names = [f"device-{i}" for i in range(12)]
    expected = sorted(drawn(VALUES, names, 5))
    orders = [list(names), names[::-1], random.Random(1).sample(names, 12)]
    assert all(set(expected) != set(order[:5]) for order in orders)

    async def scenario(federation, _):
        federation.contexts.pace.streams.burst = 100
        identities = {name: federation.enrol(name) for name in names}
        for order in orders:
            run = await submit(federation, ZEROS, **VALUES)
            streams = {}
            for name in order:
                check_in = name not in ("device-1", "device-4", "device-9")
                streams[name] = await federation.attend(identities[name], check_in=check_in)
            await until(lambda run=run: members(federation, run, 1))
            assert members(federation, run, 1) == expected
            offers = [await streams[name].offer_of(run) for name in expected]
            assert len(offers) == 5
            for name in names:
                if name not in expected and streams[name].check_in:
                    async with asyncio.timeout(PATIENCE_S):
                        goodbye = await streams[name].goodbyes.get()
                    assert 0 < goodbye.next_check_in_s <= 1.75 * 7200
            await federation.server.runs.command(run, "stop")
            for stream in streams.values():
                await stream.stop()
            fleet = federation.contexts.fleet
            await until(lambda fleet=fleet: len(fleet) == 0)

    played(tmp_path, scenario, check_in={"every_s": 7200.0, "hold_s": 1.5})


def test_streams_that_are_enough_open_a_round_at_once_and_draw_from_those_that_wait(tmp_path):
    """A round does not wait for the end of a check-in, and who waits may be drawn.

    Four hold a stream and the goal is four; over-selection draws six, among them those that wait.
    """
    names = [f"device-{i}" for i in range(7)]
    cohort = {"goal": 4, "over_selection": 1.5}
    expected = drawn(VALUES, names, 4, over_selection=1.5)
    wait = expected[:3]

    async def scenario(federation, _):
        identities = {name: federation.enrol(name) for name in names}
        streams = {
            name: await federation.attend(identities[name], check_in=name in wait) for name in names
        }
        run = await submit(federation, ZEROS, **VALUES | {"cohort": cohort})
        await streams[wait[0]].offer_of(run)
        assert members(federation, run, 1) == sorted(expected)

    played(tmp_path, scenario, check_in={"every_s": 7200.0, "hold_s": 3000.0})


def test_a_device_is_sent_away_once_its_task_has_ended(tmp_path):
    """Declined, failed or withdrawn: each gets a goodbye; a decline's rest is kept."""

    async def scenario(federation, _):
        names = ["declines", "fails", "loses"]
        identities = {name: federation.enrol(name) for name in names}
        run = await submit(federation, ZEROS, cohort={"goal": 3, "quorum": 1})
        streams = {name: await federation.attend(identities[name], check_in=True) for name in names}
        for stream in streams.values():
            key = (await stream.offer_of(run)).key
        said = fleet_pb2.OfferReply(task=key, accepted=False, again_s=9000.0)
        await streams["declines"].say(fleet_pb2.ClientMessage(offer_reply=said))
        failed = fleet_pb2.TaskFailed(task=key, reason="a test")
        await streams["fails"].say(fleet_pb2.ClientMessage(task_failed=failed))
        async with asyncio.timeout(PATIENCE_S):
            assert (await streams["declines"].goodbyes.get()).next_check_in_s > 8990.0
            await streams["fails"].goodbyes.get()
            await federation.server.runs.command(run, "stop")
            await streams["loses"].goodbyes.get()
        assert federation.contexts.fleet.available() == []

    played(tmp_path, scenario, check_in={"every_s": 3600.0, "hold_s": 0.2})


def test_a_killed_agent_comes_when_it_was_told_and_one_with_a_task_at_once(tmp_path):
    """The time is kept; a device that trained returns to its round, which goes on."""

    async def scenario(federation, agents):
        await enrol(agents, "waits", "works")
        await agents.start("waits", Adder())
        await until(lambda: health(agents, "waits").due_at)
        await agents.stop("waits")
        stays = asyncio.ensure_future(Agent(Adder(), agents.configs["waits"]).run())
        agents.tasks["waits"] = stays
        await until(lambda: health(agents, "waits").due_at)
        assert (agents.configs["waits"].state_dir / FILE).exists()

        held = Held(3.0)
        run = await submit(federation, ZEROS, cohort={"goal": 1, "quorum": 1})
        await agents.start("works", held)
        await until(held.begun.is_set)
        await agents.stop("works")
        again = Adder(5.0)
        await agents.start("works", again)
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], np.float32(5.0))
        assert federation.contexts.fleet.get("waits") is None

    played(tmp_path, scenario, check_in=SLOW)


def test_an_open_round_continues_after_a_restart_of_the_server(tmp_path):
    """Its member comes back soon, the others with jitter over what they were told."""

    async def scenario(federation, agents):
        await enrol(agents, "works", "waits")
        held = Held(2.0)
        await agents.start("waits", Adder())
        await until(lambda: health(agents, "waits").due_at)
        run = await submit(federation, ZEROS, cohort={"goal": 1, "quorum": 1})
        await agents.start("works", held)
        await until(held.begun.is_set)
        before = members(federation, run, 1)
        await federation.restart()
        held.let_go.set()
        await federation.ended(run)
        assert members(federation, run, 1) == before == ["works"]
        np.testing.assert_array_equal(result(federation, run)["w"], np.float32(2.0))
        assert health(agents, "waits").due_at

    played(tmp_path, scenario, check_in=SLOW)


@pytest.mark.long
def test_a_masked_round_keeps_its_devices_until_their_session_is_over(tmp_path):
    """Two rounds; all five check in, and hold their streams from the offer to the unmasked sum."""

    async def scenario(federation, agents):
        names = [f"device-{i}" for i in range(5)]
        await enrol(agents, *names)
        policy = tmp_path / "policy.toml"
        policy.write_text("[masking]\nmin_group = 3\n")
        for number, name in enumerate(names):
            agents.configs[name] = replace(agents.configs[name], policy=policy)
            await agents.start(name, Adder(0.125 * number))
        run = await submit(federation, ZEROS, **MASKED)
        await federation.ended(run)
        assert [row.state for row in federation.ledger.list_rounds(run)] == ["committed"] * 2
        for number in (1, 2):
            assert members(federation, run, number) == names
            [session] = federation.ledger.sessions(run, number)
            assert set(session.masked) == set(names)
        np.testing.assert_allclose(result(federation, run)["w"], 0.5, atol=1e-6)
        fleet = federation.contexts.fleet
        await until(lambda: len(fleet) == 0)

    played(tmp_path, scenario, check_in=RULES)


@pytest.mark.long
def test_a_hundred_devices_come_and_go_without_an_error(tmp_path):
    """Each with a connection of its own; all are told a time of a fleet that is evenly spread."""
    names = [f"device-{i:03}" for i in range(120)]

    async def scenario(federation, _):
        identities = [federation.enrol(name) for name in names]
        streams = await asyncio.gather(*(federation.attend(i, check_in=True) for i in identities))
        async with asyncio.timeout(PATIENCE_S):
            told = [(await stream.goodbyes.get()).next_check_in_s for stream in streams]
        assert min(told) >= 3600.0
        assert max(told) <= 10800.0
        assert np.mean(told) == pytest.approx(7200.0, abs=1000.0)  # five standard deviations
        assert federation.refusals() == []
        for stream in streams:
            await stream.stop()
        await until(lambda: len(federation.contexts.fleet) == 0)
        assert federation.contexts.fleet.waiting == {}
        await until(lambda: federation.contexts.check_in_counts.get("", NOBODY).expected == 120)

    played(tmp_path, scenario, check_in={"every_s": 7200.0, "hold_s": 0.5})


@pytest.mark.long
def test_a_small_fleet_meets_so_that_rounds_open(tmp_path):
    """Eight devices and a goal of six: come evenly spread, two would wait at a time."""
    names = [f"device-{i}" for i in range(8)]

    async def scenario(federation, agents):
        await enrol(agents, *names)
        run = await submit(federation, ZEROS, rounds=3, cohort={"goal": 6, "quorum": 6})
        for name in names:
            await agents.start(name, Adder(1.0))
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], np.float32(3.0))
        opened = [row.opened_at for row in federation.ledger.list_rounds(run)]
        assert all(later - earlier > 0.5 for earlier, later in pairwise(opened))

    played(tmp_path, scenario, check_in={"every_s": 4.0, "hold_s": 1.0})
