"""Serves a client's stream from its hello to its end: its presence and the state of its task."""

import asyncio
import logging
import time
from collections.abc import Sequence

import grpc

from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import NONCE_SINCE, __version__
from fedloom.server.background_tasks import to_the_end
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import READ_TIMEOUT_S, check_named, check_version
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.sessions import Call, Session
from fedloom.server.metrics.log_buffer import about
from fedloom.server.rounds.manager import Runs
from fedloom.server.rounds.round_driver import RoundDriver

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 10
"""Longest message of a client on its stream."""

MAX_SITE_RUNS = 500
"""Most runs that a site asks about at once."""


class Attending:
    """Serves the streams of clients that attend."""

    def __init__(self, server: FleetContext, runs: Runs) -> None:
        self._server = server
        self._runs = runs

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
        session = Session(call, context.write, hello.nonce if version >= NONCE_SINCE else b"")
        welcome = fleet_pb2.Welcome(
            protocol_version=version,
            federation=self._server.config.federation,
            server_version=__version__,
            unix_time=time.time(),
            device_every_s=self._server.config.clients.device_report_s,
        )
        await session.send(fleet_pb2.ServerMessage(welcome=welcome))
        self._server.presence.came(client, hello)
        self._server.fleet.attend(session)
        log.info("%s attends (%s)", client, printable(hello.sdk_version, 80), extra=about(client))
        try:
            await self._listen(session, context)
        finally:
            self._server.fleet.leave(session)
            self._server.presence.left(client)
            log.info("%s left", client, extra=about(client))

    async def _listen(self, session: Session, context: Context) -> None:
        while (raw := await context.read()) is not grpc.aio.EOF:
            # Not read meanwhile: flow control stops the client.
            await self._server.pace.message(session.client)
            message = _parse(raw)
            if message.HasField("masking"):
                await self._mask(session.client, message.masking)
            elif message.HasField("site"):
                await self._tell_site(session.client, message.site.runs)
            else:
                self._handle(session, message)

    async def _mask(self, client: str, message: fleet_pb2.MaskingMessage) -> None:
        """Pass on a message of a masking session; its sender learns if the round is over."""
        if driver := self._driver(client, message.task):
            await to_the_end(driver.masking_message(client, message))
        elif message.WhichOneof("kind") != "closing":
            withdraw = fleet_pb2.Withdraw(task=message.task, reason="The round is over.")
            self._server.fleet.send(client, fleet_pb2.ServerMessage(withdraw=withdraw))

    async def _tell_site(self, client: str, runs: Sequence[str]) -> None:
        if len(runs) > MAX_SITE_RUNS:
            raise Refusal(
                Code.MALFORMED, f"Expected at most {MAX_SITE_RUNS} runs of a site, got {len(runs)}."
            )
        await self._runs.tell_site(client, runs)

    def _handle(self, session: Session, message: fleet_pb2.ClientMessage) -> None:
        # Not in `_listen`: its variables live while the client is idle, and a round's driver has
        # the round's sum.
        match message.WhichOneof("kind"):
            case "offer_reply":
                reply = message.offer_reply
                if driver := self._driver(session.client, reply.task):
                    driver.client_replied(session.client, reply)
            case "task_failed":
                failed = message.task_failed
                if driver := self._driver(session.client, failed.task):
                    driver.client_failed(session.client, printable(failed.reason))
            case "progress":
                if driver := self._driver(session.client, message.progress.task):
                    driver.client_progressed(session, message.progress)
            case "device":
                if self._server.config.clients.device_report_s:
                    self._server.devices.put(session.client, message.device)
            case _:
                raise Refusal(
                    Code.MALFORMED,
                    "Expected an offer_reply, a task_failed, a progress, a device, a masking "
                    "message or the runs of a site.",
                )

    def _driver(self, client: str, key: fleet_pb2.TaskKey) -> RoundDriver | None:
        """The open round that a client's message is about; None if it has ended."""
        task = (key.run, key.round)
        try:
            driver = self._runs.round(task)
        except Refusal:
            return None
        return driver if driver.key_of(client) == task else None


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
