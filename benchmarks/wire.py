"""A client's side of the documented wire by grpcio alone, for benchmarks that hold many clients.

It has a client's certificate and transport settings and nothing of its agent: no checks of what the
server sends, no retries.
"""

import hashlib

import grpc

from fedloom.client.config import load
from fedloom.client.network.connection import channel_options
from fedloom.client.state.store import ClientStore
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import chain_pem
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS


def open_channel(path, options=(), server=""):
    """A connection of a client of its own, over mTLS.

    Args:
        path: of its client.toml.
        options: of the channel, instead of a device's.
        server: host:port, if not that of the settings.
    """
    config = load(path)
    pem, root = ClientStore(config.state_dir).identity()
    credentials = grpc.ssl_channel_credentials(root, pem, chain_pem(pem))
    return grpc.aio.secure_channel(
        server or config.server, credentials, options or channel_options(config)
    )


class Stream:
    """A client's stream of offers.

    Args:
        name: in its certificate.
        channel: a channel that nobody holds closes, so the stream holds it.
        check_in: whether the client waits a while and leaves.
    """

    def __init__(self, name, channel, *, check_in=False):
        self.name, self.channel, self.check_in = name, channel, check_in
        self._call = channel.stream_stream(
            methods.ATTEND,
            request_serializer=fleet_pb2.ClientMessage.SerializeToString,
            response_deserializer=fleet_pb2.ServerMessage.FromString,
        )()

    async def begin(self):
        """Attend; returns the stream."""
        await self.hello()
        welcome = await self._call.read()
        if welcome is grpc.aio.EOF or welcome.WhichOneof("kind") != "welcome":
            raise RuntimeError(f"not welcome: {await self._call.details()}")
        return self

    async def hello(self, **labels):
        hello = fleet_pb2.Hello(
            protocol_versions=PROTOCOL_VERSIONS,
            client=self.name,
            nonce=bytes(NONCE_BYTES),
            labels=labels,
            check_in=self.check_in,
        )
        await self.send(hello=hello)

    async def send(self, **kind):
        """Send a message of a kind, such as `progress=fleet_pb2.Progress(...)`."""
        await self._call.write(fleet_pb2.ClientMessage(**kind))

    async def messages(self):
        """Every message until the stream ends."""
        while (message := await self._call.read()) is not grpc.aio.EOF:
            yield message

    async def offers(self):
        """Every offered task, unanswered, until the stream ends."""
        async for message in self.messages():
            if (task := offered(message)) is not None:
                yield task

    async def accept(self, task):
        await self.send(offer_reply=fleet_pb2.OfferReply(task=task.key, accepted=True))

    async def details(self):
        """Why the stream has ended."""
        return f"{await self._call.code()}: {await self._call.details()}"

    def cancel(self):
        self._call.cancel()


def offered(message):
    """The task that a message offers, its signature unchecked; None for another message."""
    if not message.HasField("signed_offer"):
        return message.offer if message.HasField("offer") else None
    statement = fleet_pb2.OfferStatement.FromString(message.signed_offer.statement)
    return fleet_pb2.Task.FromString(statement.task)


async def download(channel, digest):
    """Download a model to nowhere, and compare its digest."""
    request = fleet_pb2.DownloadRequest(digest=digest).SerializeToString()
    found = hashlib.sha256()
    async for chunk in channel.unary_stream(methods.DOWNLOAD)(request):
        found.update(chunk)
    if found.hexdigest() != digest:
        raise RuntimeError(f"Expected the model {digest}, got other bytes.")


def header_for(header, name, task):
    """The header of a client's update for a task.

    Args:
        header: of such an update, serialised, whoever sends it.
        name: of the client.
        task: as offered.
    """
    mine = fleet_pb2.UpdateHeader.FromString(header)
    mine.client, mine.model_digest = name, task.model.digest
    mine.task.CopyFrom(task.key)
    return mine
