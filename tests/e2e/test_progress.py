"""Progress over the wire: the operator sees how far members are, and no more than may be seen."""

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
    """Says how far it is, and waits to be let go."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()

    def train(self, params, task):
        task.progress((1, 4), loss=0.5)
        for step in range(1000):
            task.progress((step, 1000), loss=9.0)  # too soon after the first word
        while not self.let_go.wait(0.01) and not task.should_stop():
            pass
        return super().train(params, task)


async def _live(federation, run):
    between = {"number": 0, "members": {}, "progress": {}, "training": None}
    return federation.server.runs.get(run).status().get("round", between)


async def _scene(federation, directory, client, seen, **settings):
    """Run a round; `seen` is asked about the open one until it is satisfied."""
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
    """To the client's pace of words, all that training says is said at once."""
    monkeypatch.setattr(progress, "time", like(time, monotonic=lambda: 100.0))


def test_an_open_round_shows_how_far_its_members_are(federation, tmp_path, runner, one_moment):
    """The first word at once; what follows within the second is not said."""
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
    """Says how far it is in the first round, and works in silence in the second."""

    def train(self, params, task):
        if task.round == 1:
            task.progress(0.75)
            return Adder.train(self, params, task)
        while not self.let_go.wait(0.01) and not task.should_stop():
            pass
        return Adder.train(self, params, task)


def test_a_round_shows_nothing_of_the_one_before(federation, tmp_path, runner):
    """What a member said then is not how far it is now."""
    found = []

    def seen(live):
        found.append(live)
        return live["number"] == 2 and "training" in live["members"].values()

    runner.run(_scene(federation, tmp_path, SaysOnce(), seen, rounds=2, **ONE))
    assert found[-1]["progress"] == {}
    assert found[-1]["training"] is None


def test_a_private_round_shows_the_fraction_alone(federation, tmp_path, runner, one_moment):
    """No number that depends on the data leaves the device."""
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
def test_nonsense_is_dropped_and_the_stream_lives(federation, runner, fraction):
    """A client's words about itself can do no harm."""

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
