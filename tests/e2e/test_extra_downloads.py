"""Downloads that no task needs share a rate, and take no slots of the others."""

import asyncio
import hashlib

import pytest

from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from support.agents import played, until
from support.arena import Arena
from support.forgery import write_model
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


def download(channel, digest):
    request = fleet_pb2.DownloadRequest(digest=digest).SerializeToString()
    return channel.unary_stream(methods.DOWNLOAD)(request)


async def begin(channel, digest):
    """A download that has begun."""
    call = download(channel, digest)
    await call.read()
    return call


async def check_whole(channel, digest):
    got = b"".join([chunk async for chunk in download(channel, digest)])
    assert hashlib.sha256(got).hexdigest() == digest


async def open_arena(federation, tmp_path, *others):
    """Three members, others that are enrolled, and a model."""
    write_model(tmp_path / "model.safetensors")
    model = federation.contexts.models.add(tmp_path / "model.safetensors")
    members = {name: federation.enrol(name) for name in ("alice", "bob", "mallory")}
    everyone = members | {name: federation.enrol(name) for name in others}
    streams = {name: await federation.attend(each) for name, each in members.items()}
    channels = {name: federation.channel(each) for name, each in everyone.items()}
    return Arena(federation, model, members, streams, channels)


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 8])
def test_downloads_beyond_a_task_wait_and_those_of_tasks_do_not(tmp_path, slots):
    """Of a client without a task, and of a member that has been sent its files twice."""

    async def scenario(federation, _):
        arena = await open_arena(federation, tmp_path, "oscar")
        model, channels = arena.model, arena.channels
        extra = federation.contexts.extra_downloads
        async with arena.open_round() as round_, asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                await check_whole(channels["mallory"], model)
            assert extra.busy == 0
            others = ("oscar", "mallory")[:slots]
            paced = [await begin(channels[name], model) for name in others]
            assert extra.busy == len(paced)
            for name in ("alice", "bob"):
                await check_whole(channels[name], model)
            assert extra.busy == len(paced)
            assert not any(call.done() for call in paced)
            await round_.finish()
            for call in paced:
                call.cancel()
        await until(lambda: extra.busy == 0)
        await check_whole(channels["oscar"], model)

    played(tmp_path, scenario, extra_download_bytes_per_s=1, max_fast_transfers=slots)


@pytest.mark.long
def test_other_files_do_not_count_for_a_members_task(tmp_path):
    """A member that gets another model meanwhile still has its own at full speed, twice."""

    async def scenario(federation, _):
        arena = await open_arena(federation, tmp_path)
        channel, records = arena.channels["mallory"], federation.contexts.records
        size = federation.contexts.models.path(arena.model).stat().st_size
        async with arena.open_round() as round_:
            other = await round_.finish()
        async with arena.open_round() as round_:
            for _ in range(3):
                await check_whole(channel, other)
            assert records.find((round_.run, 1), "mallory").bytes_down == 0
            for times in (1, 2, 3):
                (found,) = federation.server.runs.open_rounds
                _, needed = found.record_of("mallory", arena.model)
                assert needed == (times < 3)
                await check_whole(channel, arena.model)
                assert records.find((round_.run, 1), "mallory").bytes_down == times * size
            await round_.finish()

    played(tmp_path, scenario)
