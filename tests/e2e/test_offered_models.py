"""Models that the server sends with their offers, over mTLS: to whom, and what is counted."""

import asyncio
import hashlib
import secrets
from dataclasses import replace

import numpy as np
import pytest

from fedloom.protocol.transport import methods
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server.fleet import offered_models
from support.agents import Adder, played, result, submit
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

SMALL = {"w": np.zeros(1000, np.float32)}
LARGE = {"w": np.zeros(methods.OFFERED_MODEL_BYTES // 4, np.float32)}  # and its header
ROUND = {"cohort": {"goal": 1, "quorum": 1, "deadline_s": 3600.0}}


class Stream:
    """A client's stream, byte by byte; it accepts what it is offered."""

    def __init__(self, name, channel):
        self.name, self._channel = name, channel
        self._call = channel.stream_stream(methods.ATTEND)()

    @classmethod
    def of(cls, federation, name):
        """A stream of a client that is enrolled for it."""
        return cls(name, federation.channel(federation.enrol(name)))

    def again(self):
        """Another stream of the client, after this one has ended."""
        self._call.cancel()
        return Stream(self.name, self._channel)

    async def begin(self, model_bytes):
        """Attend, and take models up to this size with offers."""
        hello = fleet_pb2.Hello(
            protocol_versions=PROTOCOL_VERSIONS,
            client=self.name,
            nonce=secrets.token_bytes(NONCE_BYTES),
            model_bytes=model_bytes,
        )
        await self._call.write(fleet_pb2.ClientMessage(hello=hello).SerializeToString())
        await self._heard("welcome")
        return self

    async def offer(self):
        """The next task, and the model that came with it or None."""
        message = await self._heard("signed_offer")
        statement = fleet_pb2.OfferStatement.FromString(message.signed_offer.statement)
        task = fleet_pb2.Task.FromString(statement.task)
        reply = fleet_pb2.OfferReply(task=task.key, accepted=True)
        await self._call.write(fleet_pb2.ClientMessage(offer_reply=reply).SerializeToString())
        return task, await self._read() if message.model_follows else None

    async def _read(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self._call.read()

    async def _heard(self, kind):
        """The next message of a kind."""
        while True:
            message = fleet_pb2.ServerMessage.FromString(await self._read())
            if message.WhichOneof("kind") == kind:
                return message


def offered(tmp_path, params, model_bytes):
    """Whether a model comes with its offer; if so its bytes and their count are checked."""

    async def scenario(federation, _):
        stream = await Stream.of(federation, "ann").begin(model_bytes)
        run = await submit(federation, params, **ROUND)
        task, model = await stream.offer()
        record = federation.contexts.records.find((run, 1), "ann")
        if model is not None:
            assert hashlib.sha256(model).hexdigest() == task.model.digest
        assert record.bytes_down == len(model or b"")
        assert record.download_began_at is None
        await federation.server.runs.command(run, "stop")
        return model is not None

    return played(tmp_path, scenario)


def test_a_small_model_comes_with_its_offer_to_a_client_that_takes_it(tmp_path):
    assert offered(tmp_path, SMALL, 1 << 40)


@pytest.mark.parametrize(
    ("params", "model_bytes"),
    [(SMALL, 0), (SMALL, 4000), (LARGE, 1 << 40)],
    ids=["of older clients", "above the client's limit", "above the server's limit"],
)
def test_other_offers_come_alone(tmp_path, params, model_bytes):
    assert not offered(tmp_path, params, model_bytes)


def offered_in_turn(tmp_path, *values):
    """Whether the models of these values come with the offers of runs after each other."""

    async def scenario(federation, _):
        stream = await Stream.of(federation, "ann").begin(1 << 20)
        got = []
        for value in values:
            run = await submit(federation, {"w": np.full(1000, value, np.float32)}, **ROUND)
            got.append((await stream.offer())[1] is not None)
            await federation.server.runs.command(run, "stop")
        return got

    return played(tmp_path, scenario)


def test_a_model_comes_once_on_a_stream(tmp_path):
    assert offered_in_turn(tmp_path, 1.0, 1.0, 2.0) == [True, False, True]


def test_a_model_comes_once_for_a_task(tmp_path):
    """Not again to a client that has lost its connection and has the model."""

    async def scenario(federation, _):
        first = await Stream.of(federation, "ann").begin(1 << 20)
        run = await submit(federation, SMALL, **ROUND)
        task, model = await first.offer()
        second = await first.again().begin(1 << 20)
        again, none = await second.offer()
        assert (again.key, again.model) == (task.key, task.model)
        await federation.server.runs.command(run, "stop")
        return model is not None, none

    assert played(tmp_path, scenario) == (True, None)


def test_offers_come_alone_while_too_much_is_sent(tmp_path, monkeypatch):
    """A model that does not fit into what may be in flight is downloaded."""
    monkeypatch.setattr(offered_models, "IN_FLIGHT_BYTES", 4000)
    assert not offered(tmp_path, SMALL, 1 << 20)


def test_a_model_that_was_sent_is_no_longer_in_flight(tmp_path, monkeypatch):
    monkeypatch.setattr(offered_models, "IN_FLIGHT_BYTES", 6000)
    assert offered_in_turn(tmp_path, 1.0, 2.0, 3.0) == [True, True, True]


def test_a_slow_client_gets_one_model(tmp_path, monkeypatch):
    """The messages of a slow stream would wait behind the models."""
    monkeypatch.setattr(offered_models, "JUDGED_AFTER_S", 0.0)
    assert offered_in_turn(tmp_path, 1.0, 2.0) == [True, False]


POLICIES = {
    "a policy of readings": '[device]\nreport = ["battery"]\n',
    "a policy": "[runs]\nrounds_per_day = 9\n",
    "a policy of what leaves": "[leaves]\nmetrics = false\n",
}


@pytest.mark.parametrize(
    "rules", ["none", *POLICIES, "a gate", "a condition", "a limit of downloads"]
)
def test_a_device_with_rules_of_its_own_is_asked_first(tmp_path, rules):
    """Its owner's rules hold before anything of the run reaches it; the bits are the same."""

    class Agrees:
        def objection(self, offer):
            return None

    async def scenario(federation, agents):
        await agents.enrol("ann")
        config = agents.configs["ann"]
        if rules in POLICIES:
            path = tmp_path / "policy.toml"
            path.write_text(POLICIES[rules])
            agents.configs["ann"] = replace(config, policy=path)
        elif rules == "a condition":
            conditions = replace(config.conditions, load_below=1e6)
            agents.configs["ann"] = replace(config, conditions=conditions)
        elif rules == "a limit of downloads":
            budgets = replace(config.budgets, download_mbit_s=1000.0)
            agents.configs["ann"] = replace(config, budgets=budgets)
        await agents.start("ann", Adder(), gates=[Agrees()] if rules == "a gate" else ())
        run = await submit(federation, SMALL, **ROUND)
        await federation.ended(run)
        assert (result(federation, run)["w"] == 1.0).all()
        [member] = federation.ledger.members(run, 1)
        size = federation.contexts.models.path(federation.ledger.round(run, 1).model_in)
        assert member.bytes_down == size.stat().st_size
        return member.download_began_at is None

    assert played(tmp_path, scenario) == (rules in ("none", "a policy of readings"))
