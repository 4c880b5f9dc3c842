"""Progress over the wire: the operator sees the members' progress, and nothing private."""

import asyncio
import threading
import time

import numpy as np
import pytest

from fedloom.client.network.connection import Connection
from fedloom.client.training import progress
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Adder, Agents, submit, until
from support.modules import like
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


class Slow(Adder):
    """Reports progress, then waits for the test."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()

    def train(self, params, task):
        task.progress((1, 4), loss=0.5)
        for step in range(1000):
            task.progress((step, 1000), loss=9.0)  # too soon after the first report
        while not self.let_go.wait(0.01) and not task.should_stop():
            pass
        return super().train(params, task)


async def _live(federation, run):
    between = {"number": 0, "members": {}, "progress": {}, "training": None}
    return federation.server.runs.get(run).status().get("round", between)


async def _scene(federation, directory, client, seen, **settings):
    """Run a round until `seen` accepts the status of the open one."""
    agents = Agents(federation, directory)
    try:
        await agents.start(f"walker-{directory.name[-12:]}", client)
        run = await submit(federation, {"b": np.zeros(3)}, **settings)
        async with asyncio.timeout(PATIENCE_S):
            while not seen(await _live(federation, run)):
                await asyncio.sleep(0.01)
        client.let_go.set()
        await federation.ended(run)
    finally:
        client.let_go.set()
        await agents.stop()


ONE = {"cohort": {"goal": 1, "quorum": 1}}


@pytest.fixture
def one_moment(monkeypatch):
    """Freeze the clock by which the client limits its reports."""
    monkeypatch.setattr(progress, "time", like(time, monotonic=lambda: 100.0))


def test_an_open_round_shows_its_members_progress(federation, tmp_path, runner, one_moment):
    """The first report is sent at once; others within the same second are not."""
    found = []

    def seen(live):
        found.append(live)
        return live["progress"]

    runner.run(_scene(federation, tmp_path, Slow(), seen, **ONE))
    (told,) = found[-1]["progress"].values()
    assert told == {"fraction": 0.25, "loss": 0.5}
    assert found[-1]["training"] == 0.25
    assert found[0]["progress"] == {}


class SaysOnce(Slow):
    """Reports progress in the first round only."""

    def train(self, params, task):
        if task.round == 1:
            task.progress(0.75)
            return Adder.train(self, params, task)
        while not self.let_go.wait(0.01) and not task.should_stop():
            pass
        return Adder.train(self, params, task)


def test_a_round_does_not_show_earlier_progress(federation, tmp_path, runner):
    """A report of the round before does not count."""
    found = []

    def seen(live):
        found.append(live)
        return live["number"] == 2 and "training" in live["members"].values()

    runner.run(_scene(federation, tmp_path, SaysOnce(), seen, rounds=2, **ONE))
    assert found[-1]["progress"] == {}
    assert found[-1]["training"] is None


def test_a_private_round_shows_only_the_fraction(federation, tmp_path, runner, one_moment):
    """No number that depends on the data is sent."""
    sent, found = [], []
    client = Slow()
    privacy = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}

    def seen(live):
        found.append(live)
        return live["progress"]

    send = Connection.send

    async def spy(self, message):
        sent.append(message)
        await send(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send", spy)
        runner.run(_scene(federation, tmp_path, client, seen, privacy=privacy, **ONE))
    (told,) = found[-1]["progress"].values()
    assert told == {"fraction": 0.25, "loss": None}
    (said,) = [message.progress for message in sent if message.HasField("progress")]
    assert not said.HasField("loss")


@pytest.mark.parametrize("fraction", [float("nan"), -0.1, 1.5, float("inf")])
def test_invalid_progress_is_dropped(federation, runner, fraction):
    """The stream continues."""

    async def scene():
        name = f"liar-{fraction}".replace(".", "-")
        stream = await federation.attend(federation.enrol(name))
        run = await submit(federation, {"b": np.zeros(3)}, **ONE)
        offer = await stream.offer_of(run)
        accept = fleet_pb2.OfferReply(task=offer.key, accepted=True)
        await stream.say(fleet_pb2.ClientMessage(offer_reply=accept))
        other = fleet_pb2.TaskKey(run="none", round=3)
        for said in (
            fleet_pb2.Progress(task=other, fraction=0.5),
            fleet_pb2.Progress(task=offer.key, fraction=fraction),
            fleet_pb2.Progress(task=offer.key, fraction=0.5, loss=float("nan")),
        ):
            await stream.say(fleet_pb2.ClientMessage(progress=said))
        driver = federation.server.runs.get(run)
        await until(lambda: driver.status()["round"]["progress"])
        assert driver.status()["round"]["progress"] == {name: {"fraction": 0.5, "loss": None}}
        await federation.server.runs.command(run, "stop", "")
        await stream.stop()

    runner.run(scene())
