"""Refusals that take several messages: cut, late, repeated and concurrent updates.

As in test_refusals.py, the round of the other clients continues and has the expected bits.
"""

import asyncio
import threading
from dataclasses import dataclass

import psutil
import pytest
from sqlalchemy.exc import OperationalError

from fedloom.protocol.errors import Code
from fedloom.protocol.transport.status import grpc_status
from fedloom.server.ledger import updates
from fedloom.server.storage.spool import SpoolFile
from fedloom.strategies import FedAvg, registry
from support.agents import until
from support.arena import GOOD, assert_recorded, assert_refused, expected_digest
from support.federation import Upload, upload

ALL = (*GOOD, "mallory")


def kinds(answer):
    return [reply.WhichOneof("kind") for reply in answer.replies]


def digest_of(arena, clients):
    return expected_digest(arena.federation.contexts.models.path(arena.model), clients)


def test_truncated_update_is_refused_and_resumed(runner, arena, caplog):
    """An early end of stream is refused; the next attempt sends only the rest."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            body = forged.body()
            half = len(body) // 2
            cut = await upload(arena.channels["mallory"], forged.header, [body[:half]])
            assert_refused(cut, Code.TRUNCATED)
            assert_recorded(arena, caplog, Code.TRUNCATED, "mallory", opened.run)
            again = await upload(arena.channels["mallory"], forged.header, [body])
            assert kinds(again) == ["proceed", "accepted"]
            assert again.replies[0].proceed.offset == half
            assert not again.replies[1].accepted.repeated
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


@pytest.mark.long
@pytest.mark.parametrize("sent", [0, 1, 7, 8, 9, 200])
def test_client_that_vanishes_is_resumed_at_any_byte(runner, arena, sent):
    """Received bytes of header or body are not requested again."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            body = forged.body()
            call = Upload(arena.channels["mallory"])
            await call.write(forged.header.SerializeToString())
            assert (await call.reply()).proceed.offset == 0
            await call.write(body[:sent])
            call.cut()
            again = await upload(arena.channels["mallory"], forged.header, [body])
            while again.code is Code.BUSY:  # the server has not yet noticed
                again = await upload(arena.channels["mallory"], forged.header, [body])
            assert kinds(again) == ["proceed", "accepted"]
            assert again.replies[0].proceed.offset in (0, sent)  # the cut may overtake the bytes
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_resumed_body_with_other_bytes_is_refused(runner, arena, caplog):
    """Halves of two bodies do not match the checksum."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            body = forged.body()
            cut = await upload(arena.channels["mallory"], forged.header, [body[:-20]])
            assert cut.code is Code.TRUNCATED
            other = body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]
            answer = await upload(arena.channels["mallory"], forged.header, [other])
            assert answer.code is Code.BAD_CHECKSUM
            assert_recorded(arena, caplog, Code.BAD_CHECKSUM, "mallory", opened.run)
            again = await opened.send("mallory", forged)
            assert again.replies[0].proceed.offset == 0
            assert kinds(again) == ["proceed", "accepted"]
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_message_after_the_last_byte_is_refused(runner, arena, caplog):
    """A body past its declared end is overlong, even if complete."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            answer = await upload(arena.channels["mallory"], forged.header, [forged.body(), b"x"])
            assert_refused(answer, Code.OVERLONG)
            assert_recorded(arena, caplog, Code.OVERLONG, "mallory", opened.run)
            assert await opened.finish() == arena.digest

    runner.run(scene())


@pytest.mark.parametrize("raw", [None, b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f"])
def test_upload_that_begins_with_garbage_is_refused(runner, arena, caplog, raw):
    """A missing header, and bytes that are no protobuf, are malformed."""

    async def scene():
        async with arena.open_round() as opened:
            call = Upload(arena.channels["mallory"])
            if raw is not None:
                await call.write(raw)
            await call.half_close()
            answer = await call.ending()
            assert_refused(answer, Code.MALFORMED)
            assert_recorded(arena, caplog, Code.MALFORMED, "mallory")
            assert await opened.finish() == arena.digest

    runner.run(scene())


def test_norm_above_the_bound_is_refused(runner, arena, caplog):
    """Even if each value is within the bound of values."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            for index in range(24):
                forged.put("w", index, 90.0)
            answer = await opened.send("mallory", forged, forged.seal())
            assert_refused(answer, Code.NORM_TOO_LARGE)
            assert_recorded(arena, caplog, Code.NORM_TOO_LARGE, "mallory", opened.run)
            assert await opened.finish() == arena.digest

    runner.run(scene())


@pytest.mark.long
def test_norm_at_the_bound_is_the_same_in_any_chunks(runner, arena):
    """It is accepted whole or byte by byte."""

    async def scene():
        for size in (1, 1 << 20):
            async with arena.open_round(max_norm=50.0) as opened:
                forged = opened.honest("mallory")
                forged.data[:] = bytes(len(forged.data))
                forged.put("w", 0, 30.0)
                forged.put("w", 23, 40.0)
                forged.put("b.bits", 0, 0b1001101)
                body = forged.seal()
                chunks = [body[i : i + size] for i in range(0, len(body), size)]
                answer = await upload(arena.channels["mallory"], forged.header, chunks)
                assert kinds(answer) == ["proceed", "accepted"]

    runner.run(scene())


@pytest.mark.long
def test_weight_below_the_least_is_refused(runner, arena, caplog):
    """A weight under 2^-30 has bits that the sum of weights does not."""

    async def scene():
        async with arena.open_round(weighting="client") as opened:
            forged = opened.honest("mallory")
            forged.header.weight = 9e-10
            answer = await opened.send("mallory", forged)
            assert answer.code is Code.WEIGHT_OUT_OF_RANGE
            assert_recorded(arena, caplog, Code.WEIGHT_OUT_OF_RANGE, "mallory", opened.run)
            assert await opened.finish() == arena.digest

    runner.run(scene())


def test_weight_must_be_one_in_uniform_runs(runner, arena, caplog):
    async def scene():
        async with arena.open_round(weighting="uniform") as opened:
            forged = opened.honest("mallory")
            forged.header.weight = 2.0
            answer = await opened.send("mallory", forged)
            assert answer.code is Code.WEIGHT_OUT_OF_RANGE
            assert_recorded(arena, caplog, Code.WEIGHT_OUT_OF_RANGE, "mallory", opened.run)

    runner.run(scene())


def test_refused_client_may_send_another_update_to_the_open_round(runner, arena):
    """The refused update leaves no trace."""

    async def scene():
        async with arena.open_round() as opened:
            bad = opened.honest("mallory")
            bad.put("w", 0, float("nan"))
            assert (await opened.send("mallory", bad, bad.seal())).code is Code.NOT_FINITE
            assert kinds(await opened.send("mallory", opened.honest("mallory")))[-1] == "accepted"
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_outsider_is_not_in_the_cohort(runner, arena, caplog):
    """An enrolled client outside the cohort may not contribute."""

    async def scene():
        carol = arena.federation.channel(arena.federation.enrol("carol"))
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            forged.header.client = "carol"
            answer = await upload(carol, forged.header, [forged.body()])
            assert_refused(answer, Code.NOT_IN_COHORT)
            assert_recorded(arena, caplog, Code.NOT_IN_COHORT, "carol", opened.run)
            assert await opened.finish() == arena.digest

    runner.run(scene())


@pytest.mark.long
def test_repeat_is_acknowledged_and_counts_once(runner, arena, caplog):
    """The answer is `repeated`: in its round, after the commit, and later."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            first = await opened.send("mallory", forged)
            assert kinds(first) == ["proceed", "accepted"]
            assert not first.replies[1].accepted.repeated
            again = await opened.send("mallory", forged)
            assert kinds(again) == ["accepted"]
            assert again.replies[0].accepted.repeated
            assert await opened.finish() == digest_of(arena, ALL)
            later = await opened.send("mallory", forged)
            assert later.replies[0].accepted.repeated
            ledger = arena.federation.ledger
            assert sorted(row.client for row in ledger.accepted(opened.run, 1)) == sorted(ALL)
            assert ledger.find_update(opened.run, 1, "mallory").repeats == 2
        assert not arena.federation.refusals(opened.run)

    runner.run(scene())


def test_second_update_for_a_slot_is_a_conflict(runner, arena, caplog):
    """In its round and after it."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            assert (await opened.send("mallory", forged)).code is None
            forged.put("w", 3, 7.0)
            body = forged.seal()
            for late in (False, True):
                answer = await opened.send("mallory", forged, body)
                assert answer.code is Code.CONFLICTING_UPDATE
                assert answer.status is grpc_status(Code.CONFLICTING_UPDATE)
                assert_recorded(arena, caplog, Code.CONFLICTING_UPDATE, "mallory", opened.run)
                if not late:
                    assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_second_upload_at_the_same_time_has_to_wait(runner, arena, caplog):
    """Another upload for the same slot is told to retry later."""

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            call = Upload(arena.channels["mallory"])
            await call.write(forged.header.SerializeToString())
            assert (await call.reply()).WhichOneof("kind") == "proceed"
            answer = await opened.send("mallory", forged)
            assert_refused(answer, Code.BUSY)
            assert_recorded(arena, caplog, Code.BUSY, "mallory", opened.run)
            await call.write(forged.body())
            await call.half_close()
            assert (await call.reply()).WhichOneof("kind") == "accepted"
            assert (await call.ending()).code is None
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_an_update_that_is_being_accepted_is_not_overwritten(runner, arena, monkeypatch):
    """Its client is gone when another update of the same task arrives, and the ledger is slow."""
    accept_in, begun, held = updates.accept_in, threading.Event(), threading.Event()

    def slowly(*args, **kwargs):
        begun.set()
        assert held.wait(10)
        return accept_in(*args, **kwargs)

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            monkeypatch.setattr(updates, "accept_in", slowly)
            call = Upload(arena.channels["mallory"])
            await call.write(forged.header.SerializeToString())
            await call.reply()
            await call.write(forged.body())
            await call.half_close()
            await asyncio.to_thread(begun.wait, 10)
            call.cut()
            forged.put("w", 3, 7.0)
            body = forged.seal()
            asyncio.get_running_loop().call_later(0.5, held.set)
            while (answer := await opened.send("mallory", forged, body)).code is Code.BUSY:
                await asyncio.sleep(0.01)
            assert answer.code is Code.CONFLICTING_UPDATE
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_silent_upload_is_truncated_and_resumed_later(runner, arena, caplog, monkeypatch):
    """The error is `truncated`, not a full disk."""
    append = SpoolFile.append

    def append_and_hurry(file, chunk):
        append(file, chunk)
        monkeypatch.setattr("fedloom.server.fleet.upload_body.READ_TIMEOUT_S", 0.1)

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            body = forged.body()
            call = Upload(arena.channels["mallory"])
            monkeypatch.setattr(SpoolFile, "append", append_and_hurry)
            await call.write(forged.header.SerializeToString())
            assert (await call.reply()).WhichOneof("kind") == "proceed"
            await call.write(body[:100])
            answer = await call.ending()
            monkeypatch.undo()
            assert_refused(answer, Code.TRUNCATED)
            assert_recorded(arena, caplog, Code.TRUNCATED, "mallory", opened.run)
            again = await upload(arena.channels["mallory"], forged.header, [body])
            assert again.replies[0].proceed.offset == 100
            assert await opened.finish() == digest_of(arena, ALL)

    runner.run(scene())


def test_late_update_is_refused_when_its_round_is_over(runner, arena, caplog):
    """An upload in progress at the close is cut; a later one is stale."""

    async def scene():
        async with arena.open_round(rounds=2) as opened:
            forged = opened.honest("mallory")
            body = forged.body()
            call = Upload(arena.channels["mallory"])
            await call.write(forged.header.SerializeToString())
            await call.reply()
            await call.write(body[:100])
            for name in GOOD:
                assert (await opened.send(name, opened.honest(name))).code is None
            await arena.federation.server.runs.command(opened.run, "close")
            for stream in arena.streams.values():
                second = await stream.offer_of(opened.run)
                assert second.key.round == 2
            await call.write(body[100:])  # one message: gRPC hides the refusal if it meets a write
            answer = await call.ending()
            assert_refused(answer, Code.ROUND_CLOSED)
            assert_recorded(arena, caplog, Code.ROUND_CLOSED, "mallory", opened.run)
            stale = await opened.send("mallory", forged)
            assert_refused(stale, Code.STALE_ROUND)
            assert_recorded(arena, caplog, Code.STALE_ROUND, "mallory", opened.run)
            assert arena.federation.ledger.run(opened.run).model == arena.digest

    runner.run(scene())


def test_tensors_are_refused_in_a_round_of_evaluation(runner, arena, caplog):
    """An evaluation may not change the model."""

    async def scene():
        async with arena.open_round(evaluate=True) as opened:
            for name in ALL:
                assert (await opened.send(name, opened.honest(name))).code is None
            offers = {n: await s.offer_of(opened.run) for n, s in arena.streams.items()}
            opened.offers = offers
            answer = await opened.send("mallory", opened.honest("mallory"))
            assert answer.code is Code.UNKNOWN_TENSOR
            assert_recorded(arena, caplog, Code.UNKNOWN_TENSOR, "mallory", opened.run)
            for name in GOOD:
                forged = opened.honest(name)
                del forged.header.parts[:]
                forged.header.size_bytes = forged.header.crc32c = 0
                assert kinds(await opened.send(name, forged, b"")) == ["accepted"]
            assert await opened.close() == digest_of(arena, ALL)

    runner.run(scene())


def test_oversize_declaration_costs_neither_disk_nor_memory(runner, arena):
    """A terabyte is refused before any space is reserved."""

    async def scene():
        async with arena.open_round() as opened:
            spool = arena.federation.directory / "spool"
            process = psutil.Process()
            files = sorted(spool.iterdir())
            resident = process.memory_info().rss
            for size in (1 << 40, 1 << 50, (1 << 64) - 1):
                forged = opened.honest("mallory")
                forged.header.size_bytes = size
                assert (await opened.send("mallory", forged)).code is Code.TOO_LARGE
            assert sorted(spool.iterdir()) == files
            assert process.memory_info().rss - resident < 32 << 20
            assert await opened.finish() == arena.digest

    runner.run(scene())


@dataclass(frozen=True, slots=True, kw_only=True)
class Raising(FedAvg):
    """A strategy that raises."""

    def finish(self, state, model, partial):
        raise ArithmeticError("the strategy cannot do this")


def test_strategy_that_raises_fails_only_its_round(runner, arena, caplog, monkeypatch):
    """The round is abandoned with the reason, the run pauses, and another run works."""
    monkeypatch.setitem(registry.STRATEGIES, "raising", Raising)

    async def scene():
        federation = arena.federation
        runs = federation.server.runs
        async with arena.open_round(strategy={"name": "raising"}) as opened:
            for name in ALL:
                assert (await opened.send(name, opened.honest(name))).code is None
            await until(lambda: federation.ledger.run(opened.run).state != "running")
            reason = "ArithmeticError: the strategy cannot do this"
            (row,) = federation.ledger.list_rounds(opened.run)
            assert (row.state, row.reason) == ("abandoned", reason)
            stored = federation.ledger.run(opened.run)
            assert stored.state == "paused"
            assert reason in stored.reason
            assert stored.model == arena.model
            assert reason in caplog.text
            async with arena.open_round() as other:
                assert await other.finish() == arena.digest
            monkeypatch.setitem(registry.STRATEGIES, "raising", FedAvg)
            await runs.command(opened.run, "resume")
            opened.offers = {n: await s.offer_of(opened.run) for n, s in arena.streams.items()}
            assert {offer.key.round for offer in opened.offers.values()} == {2}
            assert await opened.finish() == arena.digest

    runner.run(scene())


@pytest.mark.long
def test_an_update_whose_commit_was_not_answered_counts(runner, arena, monkeypatch):
    """The database has it, and its client does not repeat it: the round does not wait for it."""

    async def scene():
        async with arena.open_round() as opened:
            accepting = arena.federation.server.context.rounds.accept
            accept = accepting._do

            def unanswered(items):
                accept(items)
                monkeypatch.setattr(accepting, "_do", accept)
                raise OperationalError("COMMIT", {}, Exception("the connection is lost"))

            monkeypatch.setattr(accepting, "_do", unanswered)
            first = await opened.send("mallory", opened.honest("mallory"))
            assert kinds(first) == ["proceed"]
            for name in GOOD:
                await opened.send(name, opened.honest(name))
            ledger = arena.federation.ledger
            await until(lambda: ledger.run(opened.run).state == "finished")
            assert ledger.run(opened.run).model == digest_of(arena, ALL)

    runner.run(scene())
