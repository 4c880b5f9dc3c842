"""Attacks for hostile.py: what strangers, enrolled clients and viewers send to stall the others.

Each speaks the documented wire by grpcio, sockets or plain HTTP, with identities that the server
issued, until it is ended. To add one, write `async def name(attackers)` under `@kind(clients=N)`,
and call `attackers.settled()` once it is under way.
"""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from wire import Stream, header_for, open_channel

from fedloom.client.config import load
from fedloom.client.state.store import ClientStore
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS

OPTIONS = (
    ("grpc.max_receive_message_length", methods.MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
LOST = (grpc.aio.AioRpcError, asyncio.InvalidStateError, RuntimeError)
"""What a call raises that the server has ended."""


# ---- what an attack works with -----------------------------------------------------------------


@dataclass(frozen=True)
class Attackers:
    """The identities of an attack, and where it finds the server.

    Attributes:
        configs: client.toml of each identity, by name.
        server: host:port of the fleet.
        enrolment: host:port for devices with a token.
        console: host:port of the console.
        cookies: sessions of viewers.
        digest: of a model that the server sends.
        header: of a valid update to that model, without task, client and digest.
        settled: tells the parent that the attack is under way.
    """

    configs: dict[str, Path]
    server: str
    enrolment: str
    console: str
    cookies: tuple[str, ...]
    digest: str
    header: bytes
    settled: Callable[[], None]

    def channel(self, name):
        """A connection of an identity of its own, over mTLS."""
        return open_channel(self.configs[name], OPTIONS)

    def stranger(self):
        """A connection to the enrolment port, without a certificate."""
        (config, *_) = self.configs.values()
        _, root = ClientStore(load(config).state_dir).identity()
        credentials = grpc.ssl_channel_credentials(root)
        return grpc.aio.secure_channel(self.enrolment, credentials, OPTIONS)

    async def each(self, work):
        """Run `work(name, channel)` for every identity at once, each with its connection."""

        async def one(name):
            async with self.channel(name) as channel:
                await work(name, channel)

        working = [asyncio.ensure_future(one(name)) for name in self.configs]
        self.settled()
        await asyncio.gather(*working)


@dataclass(frozen=True)
class Kind:
    """A registered attack.

    Attributes:
        attack: runs until it is cancelled.
        clients: identities that it has.
        members: whether these stay connected and are asked by rounds, beside the honest fleet.
    """

    attack: Callable[[Attackers], Awaitable[None]]
    clients: int
    members: bool


KINDS: dict[str, Kind] = {}


def kind(clients, *, members=False):
    """Register an attack under the name of its function."""

    def register(attack):
        KINDS[attack.__name__] = Kind(attack, clients, members)
        return attack

    return register


async def for_ever(call, at_once, attackers):
    """Make calls for ever, so many at a time, whatever they raise."""

    async def calling():
        while True:
            with suppress(*LOST, OSError, EOFError):
                await call()

    working = [asyncio.ensure_future(calling()) for _ in range(at_once)]
    attackers.settled()
    await asyncio.gather(*working)


# ---- silent and slow peers ---------------------------------------------------------------------


@kind(clients=1)
async def downloads_that_read_nothing(attackers):
    """One client opens 31 downloads of the model and reads none."""
    await _downloads(attackers, 31, lambda call: call.code())  # the end of the call


@kind(clients=8)
async def downloads_of_a_message_a_second(attackers):
    """Eight clients open eight downloads each, and read one message of each a second."""

    async def drip(call):
        with suppress(*LOST):
            async for _ in call:
                await asyncio.sleep(1.0)

    await _downloads(attackers, 8, drip)


@kind(clients=8)
async def downloads_in_a_loop(attackers):
    """Eight clients download the model again and again, one at a time."""

    async def whole(call):
        with suppress(*LOST):
            async for _ in call:
                pass

    await _downloads(attackers, 1, whole, pause_s=0.0)


async def _downloads(attackers, at_once, read, pause_s=0.1):
    """Open so many downloads for each client, and another when one has been read."""
    request = fleet_pb2.DownloadRequest(digest=attackers.digest).SerializeToString()

    async def hold(_, channel):
        async def one():
            while True:
                await read(channel.unary_stream(methods.DOWNLOAD)(request))
                await asyncio.sleep(pause_s)

        await asyncio.gather(*(one() for _ in range(at_once)))

    await attackers.each(hold)


@kind(clients=8, members=True)
async def uploads_of_a_header_alone(attackers):
    """Eight members send the header of an update, then nothing."""
    held = []

    async def stall(name, channel):
        member = await Stream(name, channel).begin()
        async for offer in member.offers():
            await member.accept(offer)
            call = channel.stream_stream(methods.UPLOAD)()
            await call.write(header_for(attackers.header, name, offer).SerializeToString())
            held.append(call)

    await attackers.each(stall)


@kind(clients=8, members=True)
async def uploads_of_a_byte_a_second(attackers):
    """Eight members send their updates byte by byte, one a second."""

    async def drip(name, channel):
        async def upload(offer):
            call = channel.stream_stream(methods.UPLOAD)()
            with suppress(*LOST):
                await call.write(header_for(attackers.header, name, offer).SerializeToString())
                await call.read()
                while True:
                    await call.write(b"\0")
                    await asyncio.sleep(1.0)

        dripping = []
        member = await Stream(name, channel).begin()
        async for offer in member.offers():
            await member.accept(offer)
            dripping.append(asyncio.ensure_future(upload(offer)))

    await attackers.each(drip)


@kind(clients=2, members=True)
async def offers_left_unanswered(attackers):
    """Two members read their offers and say nothing."""

    async def ignore(name, channel):
        member = await Stream(name, channel).begin()
        async for _ in member.offers():
            pass

    await attackers.each(ignore)


@kind(clients=1)
async def half_open_handshakes(attackers):
    """A stranger holds 1,000 connections to each gRPC port: silent, or with half a ClientHello."""
    half = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40)
    addresses = [a.rpartition(":") for a in (attackers.server, attackers.enrolment)]

    async def hold(host, port, said):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(said)
            await reader.read()  # until the server closes it
        finally:
            writer.close()

    async def again(host, port, said):
        while True:
            with suppress(OSError):
                await hold(host, port, said)
            await asyncio.sleep(0.05)

    holding = [
        asyncio.ensure_future(again(host, port, half if number % 2 else b""))
        for host, _, port in addresses
        for number in range(1000)
    ]
    attackers.settled()
    await asyncio.gather(*holding)


# ---- calls in bulk -----------------------------------------------------------------------------


@kind(clients=1)
async def uploads_outside_the_cohort(attackers):
    """One client sends headers of updates that nobody asked it for, 5,000 streams at a time."""
    (name,) = attackers.configs
    header = fleet_pb2.UpdateHeader(client=name, weight=1.0, size_bytes=100)
    header.task.run, header.task.round = "none", 1

    async def one():
        call = channel.stream_stream(methods.UPLOAD)()
        await call.write(header.SerializeToString())
        await call.read()

    async with attackers.channel(name) as channel:
        await for_ever(one, 5000, attackers)


@kind(clients=1)
async def downloads_of_unknown_models(attackers):
    """One client asks for models that do not exist, 1,000 at a time."""
    (name,) = attackers.configs

    async def one():
        request = fleet_pb2.DownloadRequest(digest=secrets.token_hex(32)).SerializeToString()
        await channel.unary_stream(methods.DOWNLOAD)(request).read()

    async with attackers.channel(name) as channel:
        await for_ever(one, 1000, attackers)


@kind(clients=1)
async def renewals(attackers):
    """One client asks for certificates in a loop, each for another key, 64 at a time."""
    (name,) = attackers.configs
    requests = [
        enrolment_pb2.RenewRequest(csr_pem=build_csr(generate_key())).SerializeToString()
        for _ in range(100)
    ]

    async def one():
        await channel.unary_unary(methods.RENEW)(secrets.choice(requests))

    async with attackers.channel(name) as channel:
        await for_ever(one, 64, attackers)


@kind(clients=1)
async def guessed_tokens(attackers):
    """A stranger enrols with tokens that nobody gave out, 64 calls at a time."""
    csr, pin = build_csr(generate_key()), secrets.token_bytes(32)

    async def one():
        request = enrolment_pb2.EnrolRequest(
            protocol_versions=PROTOCOL_VERSIONS, token=tokens.make_token(pin).text(), csr_pem=csr
        )
        await channel.unary_unary(methods.ENROL)(request.SerializeToString())

    async with attackers.stranger() as channel:
        await for_ever(one, 64, attackers)


@kind(clients=16)
async def reconnect_storms(attackers):
    """Sixteen clients connect, say hello, and hang up, for ever."""

    async def one(name):
        async with attackers.channel(name) as channel:
            await asyncio.wait_for(Stream(name, channel).begin(), 10.0)

    async def storm(name):
        while True:
            with suppress(*LOST, TimeoutError):
                await one(name)

    storming = [asyncio.ensure_future(storm(name)) for name in attackers.configs]
    attackers.settled()
    await asyncio.gather(*storming)


# ---- the control stream ------------------------------------------------------------------------


@kind(clients=1)
async def hellos(attackers):
    """One client says hello on its stream again and again, and reconnects when it is refused."""
    await _messages(attackers, lambda member: member.hello())


@kind(clients=1, members=True)
async def progress(attackers):
    """One member reports progress of tasks that it does not have, as fast as it can."""
    message = fleet_pb2.Progress(task=fleet_pb2.TaskKey(run="none", round=1), fraction=0.5)
    await _messages(attackers, lambda member: member.send(progress=message))


@kind(clients=1)
async def messages_of_2_mib(attackers):
    """One client sends messages of 2 MiB on its stream, and reconnects when it is refused."""
    await _messages(attackers, lambda member: member.hello(large="x" * (2 << 20)))


async def _messages(attackers, send):
    async def flood(name, channel):
        while True:
            with suppress(*LOST):
                member = await Stream(name, channel).begin()
                reading = asyncio.ensure_future(_drain(member))
                try:
                    while True:
                        await send(member)
                finally:
                    reading.cancel()

    await attackers.each(flood)


async def _drain(member):
    with suppress(*LOST):
        async for _ in member.offers():
            pass


# ---- the console -------------------------------------------------------------------------------


@kind(clients=1)
async def console_logins(attackers):
    """A stranger guesses passwords at the console, 64 at a time, each for another name."""

    async def one():
        form = f"name={secrets.token_hex(4)}&password={secrets.token_hex(8)}"
        head = (
            f"POST /login HTTP/1.1\r\nHost: {attackers.console}\r\nConnection: close\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: {len(form)}\r\n\r\n"
        )
        await _http(attackers.console, head + form)

    await for_ever(one, 64, attackers)


@kind(clients=1)
async def console_requests(attackers):
    """A stranger asks for the login page and hangs up at once, as often as it can."""
    request = f"GET /login HTTP/1.1\r\nHost: {attackers.console}\r\n\r\n".encode()
    host, _, port = attackers.console.rpartition(":")

    async def one():
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        await writer.drain()
        writer.transport.abort()

    await for_ever(one, 16, attackers)


@kind(clients=1)
async def event_streams(attackers):
    """Viewers open 200 streams of events each, read nothing, and open those anew that end."""

    async def one(cookie):
        head = f"GET /v1/events HTTP/1.1\r\nHost: {attackers.console}\r\nCookie: {cookie}\r\n\r\n"
        with socket.socket() as sock:  # a small window, so that unread events fill it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            host, _, port = attackers.console.rpartition(":")
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (host, int(port)))
            await loop.sock_sendall(sock, head.encode())
            answer = await loop.sock_recv(sock, 64)
            await asyncio.sleep(600.0 if b" 200 " in answer else 0.1)

    async def again(cookie):
        while True:
            with suppress(OSError):
                await one(cookie)
            await asyncio.sleep(0.05)

    holding = [
        asyncio.ensure_future(again(cookie)) for cookie in attackers.cookies for _ in range(200)
    ]
    attackers.settled()
    await asyncio.gather(*holding)


async def _http(address, request):
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request.encode())
        await reader.read()
    finally:
        writer.close()
