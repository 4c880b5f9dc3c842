"""The connection of a client to its server: one stream for offers, and channels for transfers.

Transfers outlive a connection: `persist` retries them. An attempt ends with the connection that it
uses and starts again on the next one.
"""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fedloom.client.config import ClientConfig
from fedloom.client.network import transfer
from fedloom.client.network.diagnosis import diagnose
from fedloom.client.offers.signature import Trust
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import FedloomError, Refusal, UnavailableError, printable
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import identity
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS, __version__

log = logging.getLogger(__name__)

CONNECT_S = 20.0
JITTER = SystemRandom()
"""Random delays that spread a fleet's calls. From the system's source, because training code may
seed Python's generator equally on every device, and its own draws must not change."""
LAST_TIME = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
CLOCK_S = 60.0
"""Difference from the server's clock that is logged."""


def channel_options(config: ClientConfig) -> tuple[tuple[str, int], ...]:
    """Options of every channel to the server."""
    return (
        *methods.COMMON_OPTIONS,
        *methods.pings(config.ping_s),
        # Channels with equal arguments would share a connection, and with it a stale certificate.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    )


OWN_CONNECTION_BYTES = 4 << 20
"""Transfers from this size on use a connection of their own: the server's gRPC keeps a read buffer
of over a megabyte for each open connection that was once fast."""


class UnreadableError(UnavailableError):
    """The server sent bytes that are not a message."""


def parsed(raw: bytes, server: str) -> fleet_pb2.ServerMessage:
    """A message of the server's stream.

    Raises:
        UnreadableError: the bytes are none.
    """
    try:
        return fleet_pb2.ServerMessage.FromString(raw)
    except DecodeError:
        what = f"Expected messages from {server}, got bytes that are not a message."
        raise UnreadableError(what) from None


class Connection:
    """How one client reaches its server.

    Args:
        config: of the client.
        store: of its identity.
        takes_bytes: the size of the largest model that the server may send with an offer, bytes;
            asked for each stream.

    Attributes:
        name: of the client, from its certificate.
        trust: verifies what the server signs; None without TLS.
        connected: set while the server has accepted this client.
        greeted: whether it has, since `greeted` was last set to False.
        device_every_s: interval at which the server takes readings of the device; 0 for none.
    """

    def __init__(
        self, config: ClientConfig, store: ClientStore, takes_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self._config = config
        self._store = store
        self._takes_bytes = takes_bytes
        self.name = config.plaintext
        self.trust: Trust | None = None
        self.connected = asyncio.Event()
        self.greeted = False
        self.device_every_s = 0.0
        self._server_booted: float | None = None
        self._channel: grpc.aio.Channel | None = None
        self._attempts: set[asyncio.Task[None]] = set()
        self._stream: Any = None
        self._sending = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def server(self) -> str:
        """host:port of the fleet."""
        return self._config.server

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        plaintext = self._config.plaintext
        return ((methods.CLIENT_KEY, plaintext),) if plaintext else ()

    @asynccontextmanager
    async def attending(self) -> AsyncIterator[tuple[grpc.aio.Channel, Any]]:
        """A channel with the stream of offers; its transfers end with it."""
        async with self.open_channel() as channel:
            self._channel = channel
            stream: Any = channel.stream_stream(
                methods.ATTEND, request_serializer=fleet_pb2.ClientMessage.SerializeToString
            )(metadata=self.metadata)
            try:
                yield channel, stream
            finally:
                self._stream = None
                self._let_go()
                stream.cancel()

    def open_channel(self) -> grpc.aio.Channel:
        """Open a separate channel.

        Raises:
            Refusal: EXPIRED.
            UsageError: this client is not enrolled.
        """
        config = self._config
        if config.plaintext:
            return grpc.aio.insecure_channel(config.server, channel_options(config))
        pem, root = self._store.identity()
        peer = identity.peer_from_pem(pem)
        self.name = peer.client
        if self.trust is None:
            self.trust = Trust(self._store, peer)
        credentials = grpc.ssl_channel_credentials(root, pem, identity.chain_pem(pem))
        return grpc.aio.secure_channel(config.server, credentials, channel_options(config))

    async def greet(self, stream: Any) -> None:
        """Send the hello and wait for the welcome."""
        hello = fleet_pb2.Hello(
            protocol_versions=PROTOCOL_VERSIONS,
            client=self.name,
            sdk_version=f"fedloom/{__version__}",
            labels=self._config.labels,
            nonce=b"" if self.trust is None else self.trust.begin(),
            check_in=self._config.checks_in,
            model_bytes=self._takes_bytes(),
        )
        try:
            async with asyncio.timeout(CONNECT_S):
                await stream.write(fleet_pb2.ClientMessage(hello=hello))
                raw = await stream.read()
        except TimeoutError:
            raise UnavailableError(
                f"{self.server} did not answer within {CONNECT_S:.0f} s."
            ) from None
        if raw is grpc.aio.EOF:
            raise await transfer.failure(stream, self.server)
        message = parsed(raw, self.server)
        if message.WhichOneof("kind") != "welcome":
            raise await transfer.failure(stream, self.server)
        welcome = message.welcome
        self.set_server_time(welcome.unix_time)
        self.device_every_s = welcome.device_every_s
        log.info("%s attends %s", self.name, printable(welcome.federation))
        self._stream = stream
        self.greeted = True
        self.connected.set()

    def set_server_time(self, unix_time: float) -> None:
        """Set the server's clock, which certificates are judged by; 0 from an older server."""
        if not 0 < unix_time < LAST_TIME:  # nor NaN
            return
        ahead_s = time.time() - unix_time
        if self._server_booted is None and abs(ahead_s) > CLOCK_S:
            log.warning("this device's clock is %+.0f s from the server's", ahead_s)
        self._server_booted = unix_time - since_boot_s()

    def now(self) -> datetime:
        """The server's time; this device's if the server's is unknown."""
        if self._server_booted is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._server_booted + since_boot_s(), UTC)

    async def send(self, message: fleet_pb2.ClientMessage) -> None:
        """Send a message on the stream, if there is one. It may be lost.

        Cancelling this does not cancel the write: gRPC would cancel the stream of offers with it.
        """
        writing = asyncio.ensure_future(self._write(message))
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        await asyncio.shield(writing)

    async def _write(self, message: fleet_pb2.ClientMessage) -> None:
        async with self._sending:
            if self._stream is not None:
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._stream.write(message)

    async def diagnose(self) -> Refusal | None:
        """Check whether a certificate is the reason that connecting fails."""
        if self._config.plaintext:
            return None
        _, root = self._store.identity()
        path = self._store.identity_path
        refusal = await asyncio.to_thread(diagnose, self.server, path, root)
        if refusal is not None:
            log.warning("not connected: %s: %s", refusal.code, refusal)
        return refusal

    # ---- transfers ---------------------------------------------------------------------------

    @asynccontextmanager
    async def channel_for(self, size_bytes: int) -> AsyncIterator[grpc.aio.Channel]:
        """The channel for a transfer of this size, once the server has accepted this client."""
        await self.connected.wait()
        assert self._channel is not None
        if size_bytes < OWN_CONNECTION_BYTES:
            yield self._channel
        else:
            async with self.open_channel() as channel:
                yield channel

    async def persist(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Retry until it succeeds or is refused for good; a lost connection ends one attempt."""
        number = 0
        while True:
            trying = asyncio.ensure_future(attempt())
            self._attempts.add(trying)
            try:
                await trying
            except FedloomError as error:
                if not transfer.may_retry(error):
                    raise
                log.info("will try again: %s", error)
            except (grpc.aio.UsageError, asyncio.CancelledError) as error:
                # A call on a closed channel is cancelled; so is a withdrawn task.
                current = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and current and current.cancelling():
                    raise
                log.info("the connection was lost; will try again")
            else:
                return
            finally:
                self._attempts.discard(trying)
            await asyncio.sleep(JITTER.uniform(0, min(30.0, 0.2 * 2**number)))
            number = min(number + 1, 16)

    def _let_go(self) -> None:
        """Cancel every attempt that uses the lost connection.

        gRPC should end their calls and does not always: a call whose channel closes before its
        first message is sent can wait forever.
        """
        if not self.connected.is_set():
            return  # not accepted yet: all attempts wait for that
        self.connected.clear()
        for trying in self._attempts:
            trying.cancel()


def since_boot_s() -> float:
    """A clock that cannot be set, seconds; if the system can, it also runs during suspend."""
    if sys.platform == "win32":
        return time.monotonic()  # it runs during suspend
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
