"""A real server on loopback with its own authority, and misbehaving clients.

Nothing here goes through `fedloom.client`: what a test sends is what it says, byte by byte.
"""

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import grpc

from fedloom.protocol.errors import Code
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server import config
from fedloom.server.app import Server
from fedloom.server.pki.authority import Authority
from support.contexts import Contexts
from support.patience import PATIENCE_S

CHANNEL_OPTIONS = (*methods.COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True)
class Identity:
    """A client's name and its credentials for a handshake."""

    name: str
    key_pem: bytes
    chain_pem: bytes


@dataclass
class Answer:
    """How a call ended.

    Attributes:
        status: of the call.
        code: of the refusal in the trailing metadata, if any.
        message: of that refusal, or the call's details.
        replies: what the server sent before.
    """

    status: grpc.StatusCode
    code: Code | None
    message: str
    replies: list = field(default_factory=list)


async def ending(call, replies=()):
    """Wait for the end of a call and read its refusal."""
    async with asyncio.timeout(PATIENCE_S):
        status = await call.code()
        trailing = dict(await call.trailing_metadata() or ())
    raw = trailing.get(methods.REFUSAL_KEY)
    if raw is None:
        return Answer(status, None, await call.details(), list(replies))
    refusal = fleet_pb2.Refusal.FromString(raw)
    return Answer(status, Code(refusal.code), refusal.message, list(replies))


async def told(attempt):
    """The answer of a call that writes; it is repeated if gRPC hides the server's status.

    A write that fails as the server ends the call shows INTERNAL instead (grpc/grpc#36066).
    """
    for _ in range(5):
        answer = await attempt()
        if answer.code is not None or answer.status is not grpc.StatusCode.INTERNAL:
            break
    return answer


async def converse(channel, method, messages):
    """Write raw messages on a bidirectional stream, read all replies, and return the end."""
    return await told(partial(_converse, channel, method, messages))


async def _converse(channel, method, messages):
    call = channel.stream_stream(method)()
    replies = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for message in messages:
                    await call.write(message)
                await call.done_writing()
            with suppress(grpc.aio.AioRpcError):
                while (reply := await call.read()) is not grpc.aio.EOF:
                    replies.append(reply)
        return await ending(call, replies)
    finally:
        call.cancel()


async def ask(channel, method, request):
    """Send one raw message to a method that gives one reply."""
    call = channel.unary_unary(method)(request)
    with suppress(grpc.aio.AioRpcError):
        async with asyncio.timeout(PATIENCE_S):
            return await ending(call, [await call])
    return await ending(call)


async def download(channel, request):
    """Send one raw message to `Download` and collect the replies."""
    call = channel.unary_stream(methods.DOWNLOAD)(request)
    chunks = []
    with suppress(grpc.aio.AioRpcError):
        async with asyncio.timeout(PATIENCE_S):
            chunks = [chunk async for chunk in call]
    return await ending(call, chunks)


class Upload:
    """An upload that a test controls message by message."""

    def __init__(self, channel):
        self._call = channel.stream_stream(methods.UPLOAD)()

    async def write(self, message):
        """Send bytes; an ended call is detected by reading."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(PATIENCE_S):
                await self._call.write(message)

    async def half_close(self):
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    async def reply(self):
        """The next reply, or None at the end of the call."""
        with suppress(grpc.aio.AioRpcError):
            async with asyncio.timeout(PATIENCE_S):
                raw = await self._call.read()
            if raw is not grpc.aio.EOF:
                return fleet_pb2.UploadReply.FromString(raw)
        return None

    async def ending(self, replies=()):
        try:
            return await ending(self._call, replies)
        finally:
            self._call.cancel()

    def cut(self):
        """Close the connection without an end of stream."""
        self._call.cancel()


async def upload(channel, header, chunks):
    """Send an update as a client does: header, then on `proceed` the body from the offset on.

    Args:
        channel: to the fleet port.
        header: a message, or raw bytes.
        chunks: the body's messages; joined, a resumed upload sends what is left of them.
    """
    return await told(partial(_upload, channel, header, chunks))


async def _upload(channel, header, chunks):
    call = Upload(channel)
    await call.write(header if isinstance(header, bytes) else header.SerializeToString())
    replies = []
    first = await call.reply()
    if first is not None:
        replies.append(first)
        if first.WhichOneof("kind") == "proceed":
            skip = first.proceed.offset
            for chunk in chunks:
                if skip < len(chunk):
                    await call.write(bytes(chunk[skip:]))
                skip = max(0, skip - len(chunk))
            await call.half_close()
            while (reply := await call.reply()) is not None:
                replies.append(reply)
        else:
            await call.half_close()
    return await call.ending(replies)


class Attendance:
    """A client's live stream: its offers are queued until it ends."""

    def __init__(self, channel, name, *, check_in=False):
        self.name = name
        self.check_in = check_in
        self.channel = channel
        self.offers = asyncio.Queue()
        self.signed = []
        self.withdrawn = asyncio.Queue()
        self.verdicts = asyncio.Queue()
        self.goodbyes = asyncio.Queue()
        self._call = channel.stream_stream(
            methods.ATTEND,
            request_serializer=fleet_pb2.ClientMessage.SerializeToString,
            response_deserializer=fleet_pb2.ServerMessage.FromString,
        )()
        self._reading = None

    async def begin(self):
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        hello = fleet_pb2.Hello(
            protocol_versions=PROTOCOL_VERSIONS,
            client=self.name,
            nonce=self.nonce,
            check_in=self.check_in,
        )
        await self._call.write(fleet_pb2.ClientMessage(hello=hello))
        async with asyncio.timeout(PATIENCE_S):
            welcome = await self._call.read()
        assert welcome.WhichOneof("kind") == "welcome"
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def say(self, message):
        """Send a message on the stream."""
        await self._call.write(message)

    async def _read(self):
        with suppress(grpc.aio.AioRpcError):
            while (message := await self._call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("kind"):
                    case "signed_offer":
                        statement = message.signed_offer.statement
                        raw = fleet_pb2.OfferStatement.FromString(statement).task
                        self.offers.put_nowait(fleet_pb2.Task.FromString(raw))
                        self.signed.append(message.signed_offer)
                    case "withdraw":
                        self.withdrawn.put_nowait(message.withdraw)
                    case "site":
                        self.verdicts.put_nowait(message.site)
                    case "goodbye":
                        self.goodbyes.put_nowait(message.goodbye)
                    case kind:
                        raise AssertionError(kind)

    async def offer_of(self, run):
        """The next offer of a run; earlier offers of other runs are skipped."""
        async with asyncio.timeout(PATIENCE_S):
            while (offer := await self.offers.get()).key.run != run:
                pass
        return offer

    async def ending(self):
        """Wait for the server to end the stream."""
        return await ending(self._call)

    async def stop(self):
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait([self._reading])


class Federation:
    """A server over a directory, and the clients that a test enrols with it.

    Args:
        directory: for the server's state.
    """

    def __init__(self, directory):
        self.directory = directory
        settings = config.ServerConfig(fleet="127.0.0.1:0", enrolment="127.0.0.1:0")
        config.write(directory, settings)
        self.authority = Authority.create(directory / "pki", settings.federation, datetime.now(UTC))
        self.server = None
        self._channels = []
        self._attending = []

    @property
    def contexts(self):
        return Contexts(self.server.context)

    @property
    def ledger(self):
        return self.server.context.storage.ledger

    async def start(self):
        self.server = await Server(self.directory).__aenter__()
        return self

    async def stop(self):
        for attendance in self._attending:
            await attendance.stop()
        for channel in self._channels:
            await channel.close()
        await self.server.__aexit__(None, None, None)

    async def restart(self):
        """Stop the server and start another one over the same folder."""
        await self.server.__aexit__(None, None, None)
        await self.start()

    # ---- identities ----------------------------------------------------------------------

    def add_token(self, client, life_s=600.0):
        """A token as an operator would create it."""
        token = tokens.make_token(self.authority.root_pin)
        self.ledger.add_token(
            token.id, tokens.secret_hash(token.secret), client, time.time() + life_s
        )
        return token

    def forge(self, client, *, ttl_s=3600.0, now=None, authority=None):
        """A certificate for a name that is not in the ledger."""
        key = generate_key()
        chain, peer = (authority or self.authority).issue_client(
            build_csr(key), client, ttl_s, now or datetime.now(UTC)
        )
        return Identity(client, key_to_pem(key), chain), peer

    def enrol(self, client, *, ttl_s=3600.0, now=None):
        """An identity in the ledger."""
        identity, peer = self.forge(client, ttl_s=ttl_s, now=now)
        token = self.add_token(client)
        self.ledger.enrol(token.id, peer.serial, peer.not_after.timestamp())
        return identity

    # ---- connections ---------------------------------------------------------------------

    def channel(self, identity=None):
        """A connection to the fleet port."""
        credentials = grpc.ssl_channel_credentials(
            self.authority.root_pem, identity and identity.key_pem, identity and identity.chain_pem
        )
        return self._open(self.server.fleet_port, credentials)

    def door(self):
        """A connection to the enrolment port."""
        credentials = grpc.ssl_channel_credentials(self.authority.root_pem)
        return self._open(self.server.enrolment_port, credentials)

    def _open(self, port, credentials):
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, CHANNEL_OPTIONS)
        self._channels.append(channel)
        return channel

    async def attend(self, identity, *, check_in=False):
        """A live stream of a client."""
        attendance = Attendance(self.channel(identity), identity.name, check_in=check_in)
        self._attending.append(attendance)
        return await attendance.begin()

    # ---- enrolment -----------------------------------------------------------------------

    async def ask_enrolment(self, **fields):
        """An `Enrol` call with these fields of the request."""
        request = enrolment_pb2.EnrolRequest(
            **{"protocol_versions": PROTOCOL_VERSIONS, "csr_pem": build_csr(generate_key())}
            | fields
        )
        return await ask(self.door(), methods.ENROL, request.SerializeToString())

    # ---- runs ----------------------------------------------------------------------------

    async def ended(self, run):
        """Wait until a run has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while self.server.runs.get(run) is not None:
                await asyncio.sleep(0.002)
        await self.settled()

    async def settled(self):
        """Wait until the ledger's thread has stored all queued work."""
        await asyncio.sleep(0)  # let pending tasks queue their work
        await self.contexts.in_ledger(lambda: None)

    async def stored_refusals(self):
        """All refusals, newest first; none is counted twice because its row is being written."""
        await self.server.context.fleet.refusals.store(self.contexts)
        return self.ledger.list_refusals()

    def refusals(self, run=""):
        """The refusals, newest first, with those that would be stored within a second."""
        new = self.server.context.fleet.refusals.unstored()
        replaced = {number for number, _ in new}
        rows = [row for row in self.ledger.list_refusals(run) if row.id not in replaced]
        return [row for _, row in new if not run or row.run == run] + rows

    def spool_bytes(self):
        """What the spool takes on disk, in bytes of blocks."""
        return sum(p.stat().st_blocks * 512 for p in (self.directory / "spool").iterdir())
