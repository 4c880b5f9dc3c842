"""Peers that stop reading or sending hold no slot: others are served while they are connected.

The server has one fast slot in each direction. The bounds on time are far below the 60 s after
which a silent peer is ended, and far above what an honest transfer takes.
"""

import asyncio
import hashlib

import grpc
import numpy as np
import pytest

from fedloom.client.network.transfer import may_retry
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet.transfer_slots import MAX_PARKED
from support.agents import played, submit
from support.arena import Arena
from support.federation import Upload, ending
from support.forgery import write_model

pytestmark = pytest.mark.e2e

SOON_S = 25.0
BIG = {"w": np.arange(3 << 20, dtype=np.float32)}
"""12 MB: more than connections and gRPC buffer."""


async def open_arena(federation, tmp_path):
    """Alice, bob and mallory, enrolled and connected, and a model."""
    write_model(tmp_path / "model.safetensors")
    model = federation.contexts.models.add(tmp_path / "model.safetensors")
    identities = {name: federation.enrol(name) for name in ("alice", "bob", "mallory")}
    streams = {name: await federation.attend(each) for name, each in identities.items()}
    channels = {name: federation.channel(each) for name, each in identities.items()}
    return Arena(federation, model, identities, streams, channels)


def silent_downloads(channel, digest, count):
    """Downloads of which nothing is read."""
    request = fleet_pb2.DownloadRequest(digest=digest).SerializeToString()
    return [channel.unary_stream(methods.DOWNLOAD)(request) for _ in range(count)]


async def whole(channel, digest):
    """A download's bytes."""
    (call,) = silent_downloads(channel, digest, 1)
    return b"".join([chunk async for chunk in call])


@pytest.mark.long
@pytest.mark.parametrize("resumes", ["in the same call", "in another call"])
def test_a_silent_upload_holds_no_slot_and_goes_on_later(tmp_path, resumes):
    """Two others report while it is open; then it continues at its offset, and counts as well."""

    async def scenario(federation, _):
        arena = await open_arena(federation, tmp_path)
        async with arena.open_round() as round_:
            forged = round_.honest("mallory")
            body = forged.body()
            half = len(body) // 2
            silent = Upload(arena.channels["mallory"])
            await silent.write(forged.header.SerializeToString())
            assert (await silent.reply()).proceed.offset == 0
            await silent.write(body[:half])
            for name in ("alice", "bob"):
                async with asyncio.timeout(SOON_S):
                    answer = await round_.send(name, round_.honest(name))
                assert answer.replies[-1].HasField("accepted"), answer
            if resumes == "in another call":
                silent.cut()
                silent = await resumed(arena, forged, half)
            await silent.write(body[half:])
            await silent.half_close()
            assert (await silent.reply()).HasField("accepted")
            await federation.ended(round_.run)
            assert len(federation.ledger.accepted(round_.run, 1)) == 3

    played(tmp_path, scenario, max_fast_transfers=1)


async def resumed(arena, forged, offset):
    """An upload that continues at an offset; busy until the last one has ended."""
    async with asyncio.timeout(SOON_S):
        while True:
            again = Upload(arena.channels["mallory"])
            await again.write(forged.header.SerializeToString())
            if (reply := await again.reply()) is not None:
                assert reply.proceed.offset == offset
                return again
            assert (await again.ending()).code is Code.BUSY


@pytest.mark.long
def test_downloads_that_are_not_read_hold_no_slot(tmp_path):
    """An honest client gets its model beside 31 of another; these go on when they are read."""

    async def scenario(federation, _):
        run = await submit(federation, BIG, cohort={"goal": 1})
        digest = federation.ledger.run(run).model
        mallory = federation.channel(federation.enrol("mallory"))
        silent = silent_downloads(mallory, digest, 31)
        async with asyncio.timeout(SOON_S):
            await asyncio.wait([asyncio.ensure_future(silent[0].initial_metadata())])
            for name in ("alice", "bob"):
                got = await whole(federation.channel(federation.enrol(name)), digest)
                assert hashlib.sha256(got).hexdigest() == digest
            endings = [asyncio.ensure_future(ending(call)) for call in silent]
            refused = set()
            while len(refused) < len(silent) - MAX_PARKED:
                done, endings = await asyncio.wait(endings, return_when="FIRST_COMPLETED")
                refused |= done
            for each in refused:
                answer = each.result()
                assert (answer.code, answer.status) == (
                    Code.STALLED, grpc.StatusCode.RESOURCE_EXHAUSTED,
                )  # fmt: skip
            parked = [call for call in silent if not call.done()]
            assert len(parked) == MAX_PARKED
            got = b"".join([chunk async for chunk in parked[-1]])
            assert hashlib.sha256(got).hexdigest() == digest
        for call in silent:
            call.cancel()
        await federation.server.runs.command(run, "stop")

    played(tmp_path, scenario, max_fast_transfers=1)


def test_an_agent_tries_again_after_stalled():
    """As after any other refusal that may pass."""
    assert may_retry(Refusal(Code.STALLED, "too many"))
