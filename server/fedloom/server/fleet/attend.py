"""Serves a client's stream from its hello to its end: its presence and the state of its task."""

import asyncio
import logging
import random
import time
from typing import Protocol

import grpc

from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import NONCE_SINCE, __version__
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import READ_TIMEOUT_S, check_named, check_version
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.offered_models import OfferedModels
from fedloom.server.fleet.sessions import Call, Session
from fedloom.server.metrics.log_buffer import about

log = logging.getLogger(__name__)

AGE_S = 1800.0
"""Age at which a stream ends where there are gates, give or take a tenth, in seconds: its client
connects again, and the balancer chooses anew. Else a replica that was restarted would have none."""

MAX_MESSAGE_BYTES = 64 << 10
"""Longest message of a client on its stream."""


class StreamDesk(Protocol):
    """Handles what clients say: the `Desk`, or a relay to the server that drives."""

    def came(self, session: Session) -> None:
        """A client's stream has begun."""

    def left(self, session: Session) -> None:
        """A client's stream has ended."""

    async def said(self, session: Session, message: fleet_pb2.ClientMessage) -> None:
        """A client sent a message.

        Raises:
            Refusal: it is not allowed.
        """


class Attending:
    """Serves the streams of clients that attend.

    Attributes:
        num_streams: those that are open.
    """

    def __init__(self, server: FleetContext, desk: StreamDesk, models: OfferedModels) -> None:
        self._server = server
        self._models = models
        self._desk = desk
        self.num_streams = 0

    async def serve(self, call: Call, context: Context) -> None:
        """Serve a client's stream until it ends.

        Raises:
            Refusal: the client sent a message that is not allowed.
        """
        client = call.client
        await self._server.pace.stream(client)
        hello = await _hello(call, context)
        version = check_version(hello.protocol_versions)
        if call.peer is not None and version >= NONCE_SINCE and len(hello.nonce) != NONCE_BYTES:
            raise Refusal(
                Code.MALFORMED,
                f"Expected a nonce of {NONCE_BYTES} bytes in hello, got {len(hello.nonce)}.",
            )
        nonce = hello.nonce if version >= NONCE_SINCE else b""
        send = self._models.sender(client, context, hello.model_bytes)
        session = Session(call, send, nonce, checks_in=hello.check_in)
        welcome = fleet_pb2.Welcome(
            protocol_version=version,
            federation=self._server.config.federation,
            server_version=__version__,
            unix_time=time.time(),
            device_every_s=self._server.config.clients.device_report_s,
        )
        await session.send(fleet_pb2.ServerMessage(welcome=welcome))
        self._server.presence.came(client, hello)
        self._desk.came(session)
        does = "checks in" if hello.check_in else "attends"
        version_text = printable(hello.sdk_version, 80)
        log.info("%s %s (%s)", client, does, version_text, extra=about(client))
        self.num_streams += 1
        if self._server.config.gates:
            call.ages_at = time.monotonic() + AGE_S * random.uniform(0.9, 1.1)  # noqa: S311
        try:
            await self._listen(session, context)
        except asyncio.CancelledError:
            if not call.moves:
                raise
            call.handler.uncancel()
        finally:
            self.num_streams -= 1
            self._desk.left(session)
            self._server.presence.left(client)
            log.info("%s left", client, extra=about(client))

    async def _listen(self, session: Session, context: Context) -> None:
        while (raw := await context.read()) is not grpc.aio.EOF:
            # Not read meanwhile: flow control stops the client.
            await self._server.pace.message(session.client)
            await self._desk.said(session, _parse(raw))


def _parse(raw: object) -> fleet_pb2.ClientMessage:
    if isinstance(raw, bytes) and len(raw) > MAX_MESSAGE_BYTES:
        raise Refusal(
            Code.TOO_LARGE,
            f"Expected a message of at most {MAX_MESSAGE_BYTES} bytes, got {len(raw)}.",
        )
    return methods.parse(fleet_pb2.ClientMessage, raw)


async def _hello(call: Call, context: Context) -> fleet_pb2.Hello:
    async with asyncio.timeout(READ_TIMEOUT_S):
        message = _parse(await context.read())
    if message.WhichOneof("kind") != "hello":
        raise Refusal(Code.MALFORMED, "Expected a hello first.")
    hello: fleet_pb2.Hello = message.hello
    check_named(call, hello.client)
    return hello
