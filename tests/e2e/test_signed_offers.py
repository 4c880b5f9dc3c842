"""Real agents accept offers only with the federation's signature.

Each test changes one offer. The agent refuses it, reports the reason on its stream, and takes
part in the next, honest round.
"""

import logging
import time

import pytest

from fedloom.client import Agent
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.pki import signing_key
from support.agents import Adder, Agents, until
from support.hostile import scene, thief

pytestmark = pytest.mark.e2e


def unsigned(s, client, task, honest):
    return fleet_pb2.ServerMessage(offer=task)


def no_signature(s, client, task, honest):
    honest.signed_offer.ClearField("signature")
    return honest


def cut_signature(s, client, task, honest):
    honest.signed_offer.signature.signature = honest.signed_offer.signature.signature[:-1]
    return honest


def another_key(s, client, task, honest):
    return s.tampered.signed(client, task, signer=thief())


def endorsed_by_nobody(s, client, task, honest):
    return s.tampered.signed(client, task, signer=thief().successor())


def another_keys_name(s, client, task, honest):
    message = s.tampered.signed(client, task, signer=thief())
    message.signed_offer.signature.key = s.tampered.signer.public
    return message


def changed_after_signing(s, client, task, honest):
    statement = fleet_pb2.OfferStatement.FromString(honest.signed_offer.statement)
    task.limits.max_bytes += 1
    statement.task = task.SerializeToString()
    honest.signed_offer.statement = statement.SerializeToString()
    return honest


def for_another_client(s, client, task, honest):
    return s.tampered.signed("somebody-else", task)


def for_another_federation(s, client, task, honest):
    return s.tampered.signed(client, task, federation="elsewhere")


def signed_garbage(s, client, task, honest):
    offer = honest.signed_offer
    offer.statement = b"\xff" * 100
    offer.signature.CopyFrom(s.tampered.signer.signature("task", offer.statement))
    return honest


def signed_for_something_else(s, client, task, honest):
    offer = honest.signed_offer
    offer.signature.CopyFrom(s.tampered.signer.signature("promoted", offer.statement))
    return honest


TAMPERED = {
    unsigned: "without a signature",
    no_signature: "bad_signature",
    cut_signature: "bad_signature",
    another_key: "no key known here vouches for",
    endorsed_by_nobody: "no key known here vouches for",
    another_keys_name: "made or changed by another party",
    changed_after_signing: "made or changed by another party",
    for_another_client: "wrong_identity",
    for_another_federation: "wrong_identity",
    signed_garbage: "malformed",
    signed_for_something_else: "bad_signature",
}


@pytest.mark.long
@pytest.mark.parametrize("change", TAMPERED, ids=lambda change: change.__name__)
def test_a_tampered_offer_is_refused(runner, federation, tmp_path, caplog, change):
    """Nothing is trained; the ledger has the reason; the agent takes part in the next round."""
    caplog.set_level(logging.WARNING, "fedloom.client")
    trained = []

    class Counting(Adder):
        def train(self, params, task):
            trained.append(task.run)
            return super().train(params, task)

    async def main():
        async with scene(federation, tmp_path, "device", Counting()) as s:
            stream = federation.contexts.fleet.get("device")
            s.tampered.once(lambda *arguments: change(s, *arguments))
            run = await s.run()
            assert TAMPERED[change] in await s.declined(run)
            assert TAMPERED[change] in caplog.text
            await s.stop(run)
            assert not trained
            await s.takes_part()
            assert federation.contexts.fleet.get("device") is stream

    runner.run(main())


@pytest.mark.long
def test_a_replayed_offer_is_refused(runner, federation, tmp_path, caplog):
    """The exact bytes of an answered round, also after a restart of the agent."""

    async def main():
        async with scene(federation, tmp_path, "device") as s:
            run = await s.run()
            await federation.ended(run)
            (old,) = s.tampered.sent
            for _ in range(2):
                s.tampered.once(lambda *_: old)
                other = await s.run()
                await until(lambda: "old offer of round 1" in caplog.text)
                caplog.clear()
                assert federation.ledger.cohort(other, 1)[0].phase == "offered"
                await s.stop(other)
                assert not federation.refusals()
                await s.agents.stop("device")
                await until(lambda: federation.contexts.fleet.get("device") is None)
                await s.agents.start("device", Adder())
            await s.takes_part()

    runner.run(main())


@pytest.mark.long
def test_an_offer_is_refused_on_a_later_connection(runner, federation, tmp_path, caplog):
    """The device never saw it: only the connection that it was signed for tells that it is old."""
    kept = []

    def withhold(client, task, honest):
        kept.append(fleet_pb2.ServerMessage.FromString(honest.SerializeToString()))
        honest.signed_offer.ClearField("signature")
        return honest

    async def main():
        async with scene(federation, tmp_path, "device") as s:
            s.tampered.once(withhold)
            run = await s.run()
            await s.declined(run)
            await s.stop(run)
            await s.agents.stop("device")
            await until(lambda: federation.contexts.fleet.get("device") is None)
            await s.agents.start("device", Adder())
            s.tampered.once(lambda *_: kept[0])
            other = await s.run()
            await until(lambda: "signed for another" in caplog.text)
            await s.stop(other)
            await s.takes_part()

    runner.run(main())


@pytest.mark.long
@pytest.mark.parametrize("years", [-30, 30])
def test_a_wrong_clock_of_the_server_delays_no_offer(
    runner, federation, tmp_path, monkeypatch, years
):
    """A server is restarted, also from a backup, with a clock that differs from before."""

    async def main():
        async with scene(federation, tmp_path, "device") as s:
            await s.takes_part()
            await s.agents.stop("device")
            await until(lambda: federation.contexts.fleet.get("device") is None)
            key, now_us = s.tampered._key, time.time_ns() // 1000
            key._issued_us = 0
            shifted = (now_us + years * 365 * 86_400_000_000) * 1000
            monkeypatch.setattr(signing_key.time, "time_ns", lambda: shifted)
            await s.agents.start("device", Adder())
            await s.takes_part()
            monkeypatch.undo()
            await s.takes_part()

    runner.run(main())


@pytest.mark.long
def test_agents_follow_a_rotated_key_online_and_offline(runner, federation, tmp_path):
    """One is connected, one misses two rotations; both refuse a foreign key."""

    async def main():
        async with scene(federation, tmp_path, "device") as s:
            await s.agents.enrol("sleeper")
            key = federation.contexts.signing._key
            before = key.signer.public
            key.rotate()
            await s.takes_part()
            middle = key.signer.public
            assert ClientStore(s.agents.configs["device"].state_dir).trusted() == {middle}
            key.rotate()
            await s.agents.stop("device")
            await until(lambda: federation.contexts.fleet.get("device") is None)
            assert ClientStore(s.agents.configs["sleeper"].state_dir).trusted() == {before}
            await s.agents.start("sleeper", Adder())
            await s.takes_part()
            newest = key.signer.public
            assert ClientStore(s.agents.configs["sleeper"].state_dir).trusted() == {newest}
            await s.agents.stop("sleeper")
            await until(lambda: federation.contexts.fleet.get("sleeper") is None)
            await s.agents.start("device", Adder())
            await s.takes_part()

    runner.run(main())


@pytest.mark.long
def test_a_device_enrolled_before_signatures_learns_the_key(runner, federation, tmp_path):
    """From a renewed certificate, before it accepts any offer."""

    async def main():
        async with scene(federation, tmp_path, "device") as s:
            await s.agents.stop("device")
            await until(lambda: federation.contexts.fleet.get("device") is None)
            store = ClientStore(s.agents.configs["device"].state_dir)
            (s.agents.configs["device"].state_dir / "signing.pub").unlink()
            assert not store.trusted()
            await s.agents.start("device", Adder())
            await s.takes_part()
            assert store.trusted() == {federation.contexts.signing.signer.public}

    runner.run(main())


def test_a_server_without_signatures_is_refused(runner, federation, tmp_path, monkeypatch):
    """Both sides name their versions; there is no fallback to unsigned offers."""
    agents = Agents(federation, tmp_path)
    runner.run(agents.enrol("modern"))
    monkeypatch.setattr("fedloom.server.fleet.calls.SERVER_VERSIONS", (1,))
    with pytest.raises(Refusal, match=r"version of \[1\], got \[3\]: upgrade the older") as caught:
        runner.run(Agent(Adder(), agents.configs["modern"]).run())
    assert caught.value.code is Code.VERSION_UNSUPPORTED
    newest = federation.refusals()[0]
    assert (newest.code, newest.client) == ("version_unsupported", "modern")
