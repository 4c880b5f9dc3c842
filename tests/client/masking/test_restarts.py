"""SIGKILL of a masking device at each step: no secret on its disk, no second body, no reveal."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from fedloom.client.owner import journal
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Adder
from support.masked_fleet import play
from support.masking_server import expected, masked_task
from support.patience import PATIENCE_S

TESTS = Path(__file__).parents[2]
VICTIM = "client-3"
CODE = Adder(1497 / 2048, 7)
STEPS = ("ready", "left", "marked", "body", "agree", "reveal")
PLAIN = ("masked-run.1.body", "a value")


class Process:
    """An agent that can be killed."""

    def __init__(self, fleet, folder, kill=""):
        self.config = fleet.server.enrol(VICTIM) if not hasattr(fleet, "victim") else fleet.victim
        fleet.victim = self.config
        self._server = fleet.server
        folder.mkdir(exist_ok=True)
        self.secrets = folder / "secrets"
        self._env = {**os.environ, "PYTHONPATH": str(TESTS), "FEDLOOM_KILL": kill}
        self._process = None

    async def start(self, state=None):
        config = self.config
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(TESTS / "support" / "masking_agent.py"),
            config.server,
            str(state or config.state_dir),
            str(config.policy),
            str(CODE.step),
            str(CODE.num_examples),
            str(self.secrets),
            env=self._env,
        )
        return self

    async def killed(self):
        """Wait until it has killed itself, and the server has noticed."""
        assert await asyncio.wait_for(self._process.wait(), PATIENCE_S) == -signal.SIGKILL
        await self._server.gone(VICTIM)

    async def stop(self):
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
            await self._server.gone(VICTIM)

    def known(self):
        return self.secrets.read_text().split() if self.secrets.exists() else []


def leaks(state, secrets):
    """What of a device's secrets and plain values its files have."""
    delta = np.full(3, CODE.step, np.float32).tobytes()
    addend = np.full(3, round(CODE.step * CODE.num_examples * 2**12), "<i4").tobytes()
    found = []
    for path in state.rglob("*"):
        if not path.is_file():
            continue
        raw = path.read_bytes()
        found += [(path.name, "a secret") for s in secrets if bytes.fromhex(s) in raw]
        found += [(path.name, "a secret in hex") for s in secrets if s.encode() in raw.lower()]
        if path.parent.name != "models":
            found += [(path.name, "a value") for plain in (delta, addend) if plain in raw]
    return found


async def noted(state, event, text):
    async with asyncio.timeout(PATIENCE_S):
        while not any(e["event"] == event and text in e["text"] for e in journal.read(state)):
            await asyncio.sleep(0.02)


async def declined(fleet, **settings):
    await fleet.server.offer(VICTIM, masked_task(fleet.server, **settings))
    reply = await fleet.server.hears(VICTIM, "offer_reply")
    assert not reply.accepted
    return reply.reason


@pytest.mark.long
@pytest.mark.parametrize(
    "place", [s if s == "body" else pytest.param(s, marks=pytest.mark.longest) for s in STEPS]
)
def test_a_killed_device_has_dropped_out(tmp_path, place):
    """It may finish its upload; it signs and reveals nothing, and masks nothing again."""

    async def scenario(fleet):
        process = Process(fleet, tmp_path, f"client.masking.{place}:1")
        others = list(fleet.names)
        played = fleet.round()
        played.names = [*others, VICTIM]
        await process.start()
        try:
            await fleet.server.attends(VICTIM)
            await played.offer()
            await played.ready(*others)
            reached = STEPS.index(place)
            if reached == 0:
                await process.killed()
            else:
                await played.ready(VICTIM)
                await played.share()
                await played.forward()
                await played.bodies(*others)
                if place in ("left", "marked", "body"):
                    await process.killed()
                else:
                    await played.bodies()
                    await agreed(played, others, process, place)
            assert len(process.known()) >= (3 if reached == 0 else 3 + 2 * 4)
            assert leaks(process.config.state_dir, process.known()) == (
                [PLAIN] if place in ("ready", "left") else []
            )
            copy = tmp_path / "copy"
            shutil.copytree(process.config.state_dir, copy)
            for state in (process.config.state_dir, copy):
                again = await Process(fleet, tmp_path / "later").start(state)
                try:
                    await fleet.server.attends(VICTIM)
                    await restarted(fleet, played, place, state)
                finally:
                    await again.stop()
            if reached:
                await result(fleet, played, others, place)
        finally:
            await process.stop()

    play(tmp_path, scenario, n=3)


async def agreed(played, others, process, place):
    """Go on to the step at which the process kills itself."""
    played.masked = played.shared
    if place == "reveal":
        await played.agree()
        for name in (*others, VICTIM):
            await played.step(name, signatures=signatures(played))
    else:
        await played.agree(*others)
        await played.step(VICTIM, survivors=b"\x0f")
    await process.killed()


def signatures(played):
    return fleet_pb2.Signatures(by_member=played.agreements)


async def restarted(fleet, played, place, state):
    """What a process without the session's secrets does."""
    if place == "ready":
        assert "expected a later try" in await declined(fleet)
        return
    fleet.server.at_upload = lambda: seen.append(leaks(state, ()))
    seen = []
    await played.step(VICTIM, shares=played.forwarded(VICTIM))
    await noted(state, "accepted", "has the masked update")
    assert seen or place in ("agree", "reveal")  # noted before the kill
    assert not any(seen)  # the plain update was off the disk before a byte left
    await played.step(VICTIM, survivors=b"\x0f")
    await noted(state, "refused", "signs and reveals nothing")
    assert "is not masked again" in await declined(fleet, attempt=2)
    assert "masking.repeats" in await declined(fleet, number=2)
    said = [m.masking.WhichOneof("kind") for m in fleet.server.said.get(VICTIM, [])]
    assert not {"agreement", "reveal", "closing"} & set(said)


async def result(fleet, played, others, place):
    """The others end the session, with the body of the killed device in the sum."""
    played.masked = played.shared
    if place in ("left", "marked", "body"):
        await played.agree(*others)
    await played.reveal(*others)
    clients = [*fleet.clients.values(), CODE]
    assert played.unmasked() == expected(clients)


@pytest.mark.long
def test_a_device_that_was_killed_in_training_takes_the_task_again(tmp_path):
    """It was ready for nothing yet; its update is on the disk, and nothing more."""

    async def scenario(fleet):
        process = Process(fleet, tmp_path, "client.outbox.written:1")
        await process.start()
        try:
            await fleet.server.attends(VICTIM)
            await fleet.server.offer(VICTIM, masked_task(fleet.server))
            await process.killed()
            again = await Process(fleet, tmp_path / "later").start()
            try:
                await fleet.server.attends(VICTIM)
                await fleet.server.offer(VICTIM, masked_task(fleet.server))
                await fleet.server.hears(VICTIM, "ready")
            finally:
                await again.stop()
        finally:
            await process.stop()

    play(tmp_path, scenario, n=1)
