"""Agents survive a server that sends garbage, floods or invalid messages over gRPC.

The server is a stand-in without TLS, so that a test controls every byte.
"""

import asyncio
import hashlib
import io
from contextlib import suppress

import grpc
import numpy as np
import pytest

from fedloom.client import Agent
from fedloom.client.config import ClientConfig
from fedloom.client.owner import journal
from fedloom.protocol.tensors.container import write_params
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Adder, until

pytestmark = pytest.mark.e2e

GARBAGE = b"\xff\xff\xff\xff"


def model(value=0.0):
    file = io.BytesIO()
    write_params(file, {"w": np.full(3, value, np.float32)})
    return file.getvalue()


def digest_of(raw):
    return hashlib.sha256(raw).hexdigest()


def said(**kind):
    return fleet_pb2.ServerMessage(**kind).SerializeToString()


def welcome(**fields):
    return said(welcome=fleet_pb2.Welcome(protocol_version=2, federation="f", **fields))


def offer(raw, number=1, **fields):
    task = fleet_pb2.Task(
        key={"run": "run", "round": number},
        kind=fleet_pb2.TASK_KIND_TRAIN,
        model={"digest": digest_of(raw), "size_bytes": len(raw)},
        train={"epochs": 1, "batch_size": 1, "learning_rate": 0.1},
        rule={"name": "plain"},
        weighting=fleet_pb2.WEIGHTING_EXAMPLES,
        deadline_s=60.0,
        **fields,
    )
    return said(offer=task)


class Babbler(grpc.GenericRpcHandler):
    """A server whose answers a test gives, each once; then it is an honest one.

    Attributes:
        attend: coroutine functions of the call, one for each stream.
        download: likewise.
        upload: likewise.
        rounds: models, one for each round that an honest server offers.
        accepted: rounds that it has an update of.
        models: bytes by digest.
    """

    def __init__(self):
        self.attend, self.download, self.upload = [], [], []
        self.rounds, self.models = [model()], {}

    def service(self, details):
        stream = {methods.ATTEND: self._attend, methods.UPLOAD: self._upload}.get(details.method)
        if stream is not None:
            return grpc.stream_stream_rpc_method_handler(stream)
        if details.method == methods.DOWNLOAD:
            return grpc.unary_stream_rpc_method_handler(self._download)
        return None

    async def _attend(self, requests, call):
        await call.read()
        await (self.attend.pop(0) if self.attend else self.listen)(call)

    async def listen(self, call):
        """Welcome the client, offer it the open rounds, and wait."""
        await call.write(welcome())
        for number, raw in enumerate(self.rounds, 1):
            self.models[digest_of(raw)] = raw
            await call.write(offer(raw, number))
        while await call.read() is not grpc.aio.EOF:
            pass

    async def _download(self, request, call):
        if self.download:
            await self.download.pop(0)(call)
        else:
            asked = fleet_pb2.DownloadRequest.FromString(request)
            await call.write(self.models[asked.digest][asked.offset :])

    async def _upload(self, requests, call):
        await call.read()  # the header
        if self.upload:
            await self.upload.pop(0)(call)
            return
        proceed = fleet_pb2.UploadReply(proceed=fleet_pb2.Proceed(offset=0))
        await call.write(proceed.SerializeToString())
        while await call.read() is not grpc.aio.EOF:
            pass
        reply = fleet_pb2.UploadReply(accepted=fleet_pb2.Accepted())
        await call.write(reply.SerializeToString())


def survives(directory, last=1, **answers):
    """Send these answers to an agent, then an honest round; returns its journal."""

    async def main():
        server, babbler = grpc.aio.server(), Babbler()
        server.add_generic_rpc_handlers([babbler])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        for name, value in answers.items():
            setattr(babbler, name, value)
        config = ClientConfig(
            server=f"127.0.0.1:{port}", state_dir=directory, plaintext="device", reconnect_s=0.05
        )
        agent = asyncio.ensure_future(Agent(Adder(), config).run())
        try:
            await until(lambda: agent.done() or _ended(directory, last))
            assert not agent.done(), f"{len(babbler.attend)} answers were left"
        finally:
            agent.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await agent
            await server.stop(None)
        return list(journal.read(directory))

    return asyncio.run(main())


def _ended(directory, number):
    """Whether the agent knows that the server accepted its update of this round."""
    events = [(entry["event"], entry.get("round")) for entry in journal.read(directory)]
    return ("accepted", number) in events


def says(*messages, metadata=(), code=grpc.StatusCode.OK, details=""):
    async def answer(call):
        for message in messages:
            await call.write(message)
        call.set_trailing_metadata(metadata)
        if code is not grpc.StatusCode.OK:
            await call.abort(code, details)

    return answer


ATTEND = {
    "garbage for a welcome": says(GARBAGE),
    "nothing for a welcome": says(b""),
    "garbage for an offer": says(welcome(), GARBAGE),
    "garbage for a refusal": says(
        metadata=((methods.REFUSAL_KEY, GARBAGE),), code=grpc.StatusCode.UNAVAILABLE
    ),
    "a refusal that is none": says(
        metadata=((methods.REFUSAL_KEY, fleet_pb2.Refusal(code="evil").SerializeToString()),),
        code=grpc.StatusCode.PERMISSION_DENIED,
    ),
    "escapes for details": says(code=grpc.StatusCode.INTERNAL, details="\x1b[2J" * 100),
    "a flood of metadata": says(
        metadata=tuple((f"key-{n}", "x" * 1000) for n in range(200)),
        code=grpc.StatusCode.UNAVAILABLE,
    ),
    "an infinite clock": says(welcome(unix_time=float("inf"))),
    "a clock of NaN": says(welcome(unix_time=float("nan"))),
    "a clock before all time": says(welcome(unix_time=-1e300)),
    "a clock after all time": says(welcome(unix_time=1e300)),
    "a clock in the year 9999": says(welcome(unix_time=253402300799.0)),
}


def test_no_message_on_the_stream_ends_an_agent(tmp_path):
    """It reconnects; the journal records what could not be parsed."""
    entries = survives(tmp_path, attend=list(ATTEND.values()))
    refused = [entry["text"] for entry in entries if entry["event"] == "refused"]
    assert sum("not a message" in text for text in refused) == 2
    assert entries[-1]["event"] == "accepted"


def reply(**kind):
    return fleet_pb2.UploadReply(**kind).SerializeToString()


UPLOAD = {
    "garbage": says(GARBAGE),
    "nothing": says(b""),
    "a place after all files": says(reply(proceed={"offset": (1 << 64) - 1})),
    "a place after the update": says(reply(proceed={"offset": 1 << 20})),
    "accepted at once": says(reply(accepted={})),
    "the end": says(),
}


def test_no_answer_to_an_upload_ends_an_agent(tmp_path):
    """The error is not attributed to the training code, which had finished."""
    rounds = [model() for _ in range(len(UPLOAD))]
    entries = survives(tmp_path, last=len(rounds), rounds=rounds, upload=list(UPLOAD.values()))
    assert not [entry for entry in entries if entry["event"] == "failed"]


async def empty_without_end(call):
    while True:
        await call.write(b"")


async def endless(call):
    while True:
        await call.write(bytes(1 << 20))


def brings(*messages):
    """Welcomes the client, offers round 1 and says that the model follows; then other messages."""
    task = fleet_pb2.ServerMessage.FromString(offer(model()))
    task.model_follows = True
    return says(welcome(), task.SerializeToString(), *messages)


MODELS = {
    "the end": brings(),
    "nothing": brings(b""),
    "garbage": brings(GARBAGE),
    "another model": brings(model(1.0)),
    "a message": brings(welcome()),
    "the longest message": brings(bytes(methods.MAX_MESSAGE_BYTES)),
}


@pytest.mark.parametrize("answer", MODELS.values(), ids=MODELS)
def test_no_model_with_an_offer_ends_an_agent(tmp_path, answer):
    """It downloads the model instead."""
    entries = survives(tmp_path, attend=[answer])
    assert not [entry for entry in entries if entry["event"] in ("failed", "declined")]


def test_a_model_with_its_offer_is_not_downloaded(tmp_path):
    """Not even if the stream ends just after it."""

    async def never(call):
        raise AssertionError("it was downloaded")

    entries = survives(tmp_path, attend=[brings(model())], download=[never] * 9)
    assert {entry["event"] for entry in entries} == {"sent", "accepted"}


def test_an_endless_download_is_ended(tmp_path):
    """Also one of empty messages."""
    lies = [empty_without_end, endless, says(GARBAGE)]
    rounds = [model(1.0), model(2.0)]
    entries = survives(tmp_path, last=2, rounds=rounds, download=lies)
    (refused,) = [entry for entry in entries if entry["event"] == "refused"]
    assert refused["round"] == 1
