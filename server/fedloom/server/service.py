"""The fleet service: presence and offers on one stream, models out, updates in.

Thin: who calls is `Identify`'s, whether an update may come is the round's, what its bytes are
worth is the checker's. Here they meet the wire. Every refusal goes to the log, the ledger and the
caller, and disturbs nobody else.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import grpc
from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol import tracing, wire
from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.faults import crossing
from fedloom.protocol.tracing import NO_SPAN, Span
from fedloom.protocol.updates import BodyChecker, PlannedPart, header_limit_bytes
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS, __version__
from fedloom.server.fleet import Call, Session
from fedloom.server.fold import metrics_of
from fedloom.server.identify import Context, Identify
from fedloom.server.lanes import Lane
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.log_ring import about
from fedloom.server.measuring import measured
from fedloom.server.metrics.meters import CALL, UPDATE, timed
from fedloom.server.pki import Authority
from fedloom.server.promoted import promoted
from fedloom.server.records import Record
from fedloom.server.round_shell import RoundShell
from fedloom.server.runs import Runs
from fedloom.server.spool import SpoolFile
from fedloom.server.world import World

log = logging.getLogger(__name__)

READ_TIMEOUT_S = 60.0
"""Longest silence in the middle of an upload, and before the first message of a stream."""

MIN_BYTES_PER_S = 1024
"""Slowest upload that keeps its place, after a first minute; what has come stays."""

RESCAN_BYTES = 1 << 20

WRITE_BACK_BYTES = 4 << 20
"""Bytes of a body that come before the disk is told to begin on them."""

MIN_HEADER_BYTES = 1 << 18
"""Headers up to here are always parsed: a repeat may come when its run has ended."""


class FleetService:
    """Handlers of `fedloom.v1.Fleet`.

    Args:
        world: shared parts.
        runs: where rounds are found.
        authority: renews certificates; None on plaintext loopback.
    """

    def __init__(self, world: World, runs: Runs, authority: Authority | None) -> None:
        self._world = world
        self._runs = runs
        self._authority = authority
        self._identify = Identify(world, plaintext=authority is None)
        self._meters = world.meters
        self._uploading: set[tuple[str, int, str]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What to register with a server."""
        return grpc.method_handlers_generic_handler(
            wire.FLEET_SERVICE,
            {
                "Attend": grpc.stream_stream_rpc_method_handler(
                    self.attend,
                    response_serializer=fleet_pb2.ServerMessage.SerializeToString,
                ),
                "Renew": grpc.unary_unary_rpc_method_handler(
                    self.renew,
                    response_serializer=enrolment_pb2.IssuedCertificate.SerializeToString,
                ),
                "Leave": grpc.unary_unary_rpc_method_handler(
                    self.leave,
                    response_serializer=fleet_pb2.LeaveReply.SerializeToString,
                ),
                "Promoted": grpc.unary_unary_rpc_method_handler(
                    self.promoted,
                    response_serializer=fleet_pb2.PromotedReply.SerializeToString,
                ),
                "Measure": grpc.unary_unary_rpc_method_handler(self.measure),
                "Download": grpc.unary_stream_rpc_method_handler(self.download),
                "Upload": grpc.stream_stream_rpc_method_handler(self.upload),
            },
        )

    # ---- presence ----------------------------------------------------------------------------

    async def attend(self, _: object, context: Context) -> None:
        """A client's stream, from its hello to its end."""
        async with self._call(context) as call:
            client = call.client
            hello = await self._hello(context, client)
            session = Session(call, context.write)
            welcome = fleet_pb2.Welcome(
                protocol_version=max(set(hello.protocol_versions) & set(PROTOCOL_VERSIONS)),
                federation=self._world.config.federation,
                server_version=__version__,
                unix_time=time.time(),
            )
            await session.send(fleet_pb2.ServerMessage(welcome=welcome))
            self._world.presence.came(client, hello)
            self._world.fleet.attend(session)
            version = printable(hello.sdk_version, 80)
            log.info("%s attends (%s)", client, version, extra=about(client))
            try:
                await self._listen(session, context)
            finally:
                self._world.fleet.leave(session)
                self._world.presence.left(client)
                log.info("%s left", client, extra=about(client))

    async def _hello(self, context: Context, client: str) -> fleet_pb2.Hello:
        async with asyncio.timeout(READ_TIMEOUT_S):
            message = wire.parse(fleet_pb2.ClientMessage, await context.read())
        if message.WhichOneof("kind") != "hello":
            raise Refusal(Code.MALFORMED, "Expected a hello first.")
        hello: fleet_pb2.Hello = message.hello
        if hello.client != client:
            raise _wrong_identity(client, hello.client)
        if not set(hello.protocol_versions) & set(PROTOCOL_VERSIONS):
            raise Refusal(
                Code.VERSION_UNSUPPORTED,
                f"Expected a protocol version of {list(PROTOCOL_VERSIONS)}, "
                f"got {list(hello.protocol_versions[:8])}: upgrade the older side.",
            )
        return hello

    async def _listen(self, session: Session, context: Context) -> None:
        while (raw := await context.read()) is not grpc.aio.EOF:
            message = wire.parse(fleet_pb2.ClientMessage, raw)
            match message.WhichOneof("kind"):
                case "offer_reply":
                    reply = message.offer_reply
                    if shell := self._shell(session.client, reply.task):
                        shell.client_replied(session.client, reply)
                case "task_failed":
                    failed = message.task_failed
                    if shell := self._shell(session.client, failed.task):
                        shell.client_failed(session.client, printable(failed.reason))
                case "progress":
                    if shell := self._shell(session.client, message.progress.task):
                        shell.client_progressed(session, message.progress)
                case _:
                    raise Refusal(
                        Code.MALFORMED, "Expected an offer_reply, a task_failed or a progress."
                    )

    def _shell(self, client: str, key: fleet_pb2.TaskKey) -> RoundShell | None:
        """The round that a client's message is about, if it is still open."""
        task = (key.run, key.round)
        try:
            shell = self._runs.round(task)
        except Refusal:
            return None
        return shell if shell.key_of(client) == task else None

    # ---- certificates ------------------------------------------------------------------------

    async def renew(self, raw: bytes, context: Context) -> enrolment_pb2.IssuedCertificate:
        """A new certificate for the client that holds a good one."""
        async with self._call(context) as call:
            client = call.client
            request = wire.parse(enrolment_pb2.RenewRequest, raw)
            if self._authority is None:
                raise Refusal(Code.NO_CERTIFICATE, "There are no certificates on plaintext.")
            issued = await issue(self._world, self._authority, request.csr_pem, client)
            reply, serial, not_after = issued
            world, detail = self._world, {"serial": serial}
            async with world.audited(client, "certificate", "client.renew", client, detail):
                await world.in_ledger(world.ledger.add_certificate, serial, client, not_after)
            log.info("%s renewed its certificate", client, extra=about(client))
            return reply
        raise AssertionError("aborted")

    async def leave(self, raw: bytes, context: Context) -> fleet_pb2.LeaveReply:
        """A client leaves the federation for good: its certificates and its other calls end."""
        async with self._call(context) as call:
            wire.parse(fleet_pb2.LeaveRequest, raw)
            world = self._world
            name = call.client
            async with world.audited(name, "certificate", "client.leave", name, {}):
                await world.in_ledger(world.ledger.leave, name)
            refusal = Refusal(Code.REVOKED, f"The client {call.client!r} has left the federation.")
            for other in world.fleet.calls():
                if other.client == call.client and other is not call:
                    other.end(refusal)
            log.info("%s left the federation", call.client, extra=about(call.client))
            return fleet_pb2.LeaveReply()
        raise AssertionError("aborted")

    async def measure(self, raw: bytes, context: Context) -> bytes:
        """Let a client measure its connection."""
        async with self._call(context):
            return measured(raw)
        raise AssertionError("aborted")

    # ---- what to use -------------------------------------------------------------------------

    async def promoted(self, raw: bytes, context: Context) -> fleet_pb2.PromotedReply:
        """Which model clients are to use, signed."""
        async with self._call(context):
            request = wire.parse(fleet_pb2.PromotedRequest, raw)
            return await promoted(self._world, request.run)
        raise AssertionError("aborted")

    # ---- models out --------------------------------------------------------------------------

    async def download(self, raw: bytes, context: Context) -> None:
        """A model's bytes from an offset on."""
        async with self._call(context) as call:
            request = wire.parse(fleet_pb2.DownloadRequest, raw)
            world = self._world
            known = self._runs.sends(request.digest)
            if not known and not await world.in_ledger(world.ledger.knows_model, request.digest):
                raise Refusal(
                    Code.UNKNOWN_MODEL, f"Expected a model of this server, got {request.digest!r}."
                )
            path = world.models.path(request.digest)
            session = world.fleet.get(call.client)
            task = session.task if session else None
            seen = world.records.downloading(task, call.client, resumed=request.offset > 0)
            async with world.downloads.enter() as lane:
                await self._send_model(path, request.offset, context, lane, seen)

    async def _send_model(
        self, path: Path, offset: int, context: Context, lane: Lane, seen: Record
    ) -> None:
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise Refusal(
                Code.UNKNOWN_MODEL, "Expected a model that is still kept, got one that was pruned."
            ) from None
        try:
            offset = min(offset, os.fstat(handle).st_size)
            while chunk := os.pread(handle, lane.chunk_bytes, offset):
                begun = time.monotonic()
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await context.write(chunk)
                offset += len(chunk)
                seen.bytes_down += len(chunk)
                self._meters.sent.inc(len(chunk))
                lane.passed(len(chunk), time.monotonic() - begun)
            seen.downloaded()
        except grpc.aio.InternalError:
            log.info("%s went away in the middle of a download", context.peer())
            raise asyncio.CancelledError from None
        finally:
            os.close(handle)

    # ---- updates in --------------------------------------------------------------------------

    async def upload(self, _: object, context: Context) -> None:
        """An update: its header in, `proceed` out, its body in, `accepted` out."""
        async with self._call(context) as call:
            client = call.client
            async with asyncio.timeout(READ_TIMEOUT_S):
                raw = await context.read()
            header = self._parse_header(raw)
            call.task = (header.task.run, header.task.round)
            if header.client != client:
                raise _wrong_identity(client, header.client)
            with self._span(header, context):
                repeated = await self._receive(header, context, call)
            reply = fleet_pb2.UploadReply(accepted=fleet_pb2.Accepted(repeated=repeated))
            await context.write(reply.SerializeToString())

    def _span(self, header: fleet_pb2.UpdateHeader, context: Context) -> Span:
        """The span of taking an update, under the client's where that is of the round's trace."""
        tracer = self._world.tracer
        if not tracer.on:
            return NO_SPAN
        run, number = printable(header.task.run, 80), header.task.round
        driver = self._runs.get(header.task.run)
        above = "" if driver is None or driver.round is None else driver.round.traceparent
        given = dict(context.invocation_metadata() or ()).get(tracing.KEY)
        parent = tracing.checked(given, above) or above
        client, size = header.client, header.size_bytes
        return tracer.span("accept", parent, run=run, round=number, client=client, bytes=size)

    def _parse_header(self, raw: object) -> fleet_pb2.UpdateHeader:
        """Parse a header, unless no run could want one so long: parsing amplifies memory."""
        longest = max(MIN_HEADER_BYTES, self._runs.longest_header_bytes())
        if isinstance(raw, bytes) and len(raw) > longest:
            raise Refusal(
                Code.TOO_LARGE, f"Expected a header of at most {longest} bytes, got {len(raw)}."
            )
        return wire.parse(fleet_pb2.UpdateHeader, raw)

    async def _receive(self, header: fleet_pb2.UpdateHeader, context: Context, call: Call) -> bool:
        identity = hashlib.sha256(header.SerializeToString(deterministic=True)).hexdigest()
        key = (header.task.run, header.task.round)
        if await self._known(key, header, identity):
            return True
        shell = self._runs.round(key)
        call.refused = partial(shell.refused, number=key[1])
        longest = header_limit_bytes(shell.plan.manifest, len(shell.plan.limits.groups))
        if header.ByteSize() > longest:
            raise Refusal(
                Code.TOO_LARGE, f"Expected a header of at most {longest} bytes, got more."
            )
        self._world.fleet.check(header.client)
        planned = shell.admit(header)
        seen = self._world.records.uploading(key, header.client)
        slot = (*key, header.client)
        if slot in self._uploading:
            raise Refusal(Code.BUSY, "Another upload of this update is under way: try again.")
        self._uploading.add(slot)
        try:
            if not header.size_bytes:
                return not await self._accept(shell, header, identity, "", 0.0)
            async with self._world.uploads.enter() as lane:
                shell.check_open(header.client, key[1])  # it may have closed while this one waited
                admitted = _Admitted(shell, header, planned, identity, seen)
                return await self._receive_body(admitted, context, lane)
        finally:
            self._uploading.discard(slot)

    async def _known(
        self, key: tuple[str, int], header: fleet_pb2.UpdateHeader, identity: str
    ) -> bool:
        """Was this very update accepted before, in this round or an earlier one?"""
        world = self._world
        row = await world.in_ledger(world.ledger.find_update, *key, header.client)
        if row is None:
            return False
        if row["identity"] != identity:
            raise Refusal(
                Code.CONFLICTING_UPDATE,
                "Expected a repeat of the update that was accepted for this round, got another.",
            )
        return True

    async def _receive_body(self, admitted: "_Admitted", context: Context, lane: Lane) -> bool:
        world, shell, header = self._world, admitted.shell, admitted.header
        plan, meters, begun = shell.plan_of(header.task.round), self._meters, time.monotonic()
        checker = BodyChecker(header, admitted.planned, plan.limits, plan.manifest)
        try:
            file = world.spool.open(plan.run, plan.number, header)
        except OSError as error:
            raise _no_room(error) from error
        try:
            await self._rescan(file, checker)
            proceed = fleet_pb2.UploadReply(proceed=fleet_pb2.Proceed(offset=file.received))
            await context.write(proceed.SerializeToString())

            def passed(size_bytes: int) -> None:
                keep_up()
                admitted.seen.bytes_up += size_bytes
                meters.received.inc(size_bytes)
                lane.passed(size_bytes)
                world.fleet.check(header.client)
                shell.check_open(header.client, header.task.round)

            async with _written_early(world, file) as keep_up:
                await self._read_body(file, checker, context, passed)
            try:
                stats = await world.in_disk(checker.finish) if checker.slow else checker.finish()
            except Refusal:
                file.restart()  # what came is not what was announced
                raise
            meters.checksum_s.observe(checker.spent_s)
            with timed(meters.sync_s):
                await world.in_disk(file.sync)
            admitted.seen.upload_ended_at = time.time()
            crossing("upload.synced")
        except OSError as error:
            raise _no_room(error) from error
        finally:
            file.close()
        first = await self._accept(shell, header, admitted.identity, file.name, stats.norm)
        meters.upload_s.observe(time.monotonic() - begun)
        return not first

    async def _rescan(self, file: SpoolFile, checker: BodyChecker) -> None:
        """Check what came before a cut, in a thread: it may be long."""

        def rescan() -> None:
            while checker.received < file.received:
                left = file.received - checker.received
                checker.feed(file.read(checker.received, min(RESCAN_BYTES, left)))

        if file.received:
            try:
                await self._world.in_disk(rescan)
            except Refusal:
                file.restart()
                raise

    async def _read_body(
        self, file: SpoolFile, checker: BodyChecker, context: Context, passed: Callable[[int], None]
    ) -> None:
        """Read the body from where it stands; `passed` raises when nobody wants the rest."""
        begun, before = time.monotonic(), file.received
        while file.received < file.size_bytes:
            spent_s = time.monotonic() - begun - READ_TIMEOUT_S
            if spent_s * MIN_BYTES_PER_S > file.received - before:
                raise Refusal(
                    Code.TRUNCATED,
                    f"Expected at least {MIN_BYTES_PER_S} bytes a second while others wait: "
                    "go on from here when there is a place again.",
                )
            async with asyncio.timeout(READ_TIMEOUT_S):
                chunk = await context.read()
            if chunk is grpc.aio.EOF:
                raise Refusal(
                    Code.TRUNCATED,
                    f"Expected {file.size_bytes} bytes as declared, got {file.received}.",
                )
            if checker.slow:
                await self._world.in_disk(checker.feed, chunk)
            else:
                checker.feed(chunk)
            file.append(chunk)
            crossing("upload.chunk")
            passed(len(chunk))
        async with asyncio.timeout(READ_TIMEOUT_S):
            rest = await context.read()
        if rest is not grpc.aio.EOF:
            raise Refusal(Code.OVERLONG, f"Expected {file.size_bytes} bytes as declared, got more.")

    async def _accept(
        self,
        shell: RoundShell,
        header: fleet_pb2.UpdateHeader,
        identity: str,
        file: str,
        norm: float,
    ) -> bool:
        self._world.fleet.check(header.client)  # while its body was synced
        update = AcceptedUpdate(
            run=shell.plan.run,
            round=header.task.round,
            client=header.client,
            identity=identity,
            file=file,
            size_bytes=header.size_bytes,
            weight=header.weight,
            norm=norm,
            training=metrics_of(header.training),
            evaluation=metrics_of(header.evaluation),
        )
        # A caller that goes away now must not leave a committed row that the round never heard of.
        return await asyncio.shield(asyncio.ensure_future(shell.accept(update)))

    # ---- refusals ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _call(self, context: Context) -> AsyncIterator[Call]:
        """A call of a client in good standing; every refusal on the way ends it, typed."""
        handler = asyncio.current_task()
        assert handler is not None
        call = Call("", None, handler)
        try:
            call.client, call.peer = self._identify.caller(context)
            with self._world.fleet.calling(call):
                await self._identify.check(call.peer)
                yield call
        except TimeoutError:
            refusal = Refusal(Code.TRUNCATED, f"Expected a message within {READ_TIMEOUT_S:.0f} s.")
            await self._refuse(context, call, refusal)
        except Refusal as refusal:
            await self._refuse(context, call, refusal)
        except asyncio.CancelledError:
            if call.refusal is None:
                raise
            handler.uncancel()
            await self._refuse(context, call, call.refusal)

    async def _refuse(self, context: Context, call: Call, refusal: Refusal) -> None:
        client = call.client or self._identify.claimed(context)
        run, number = printable(call.task[0], 80), call.task[1]
        log.warning(
            "refused %s (run %s, round %d): %s: %s %s",
            client or context.peer(), run, number, refusal.code, refusal, refusal.detail,
            extra=about(client, run, number),
        )  # fmt: skip
        world = self._world
        world.meters.refusals.labels(UPDATE if run else CALL, refusal.code.value).inc()
        try:
            await world.in_ledger(world.ledger.add_refusal, client, run, number, refusal)
        except SQLAlchemyError as error:  # a full disk: the caller is told all the same
            log.warning("that refusal is not in the ledger: %s", type(error).__name__)
        world.records.refused(call.task, client, refusal.code, str(refusal))
        call.refused(client, refusal)
        world.live.changed("refusals", run)
        await abort(context, refusal)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """An update whose header is good and whose body may come."""

    shell: RoundShell
    header: fleet_pb2.UpdateHeader
    planned: list[PlannedPart]
    identity: str
    seen: Record


@asynccontextmanager
async def _written_early(world: World, file: SpoolFile) -> AsyncIterator[Callable[[], None]]:
    """Have the disk begin on a body while it comes; yields what to call as it does.

    So the sync at its end finds little left: 4 ms instead of 120 with eight bodies of 40 MB.
    """
    writing: asyncio.Future[None] | None = None

    def keep_up() -> None:
        nonlocal writing
        if file.unwritten >= WRITE_BACK_BYTES and (writing is None or writing.done()):
            writing = asyncio.ensure_future(world.in_disk(file.write_back))

    try:
        yield keep_up
    finally:
        if writing is not None:
            await asyncio.wait([writing])


async def abort(context: Context, refusal: Refusal) -> None:
    """End a call with a typed refusal."""
    # The details are percent-encoded, three bytes for each; the whole message is in the metadata.
    details = printable(str(refusal), 250)
    await context.abort(refusal.code.status, details, wire.refusal_metadata(refusal))


async def issue(
    world: World, authority: Authority, csr_pem: bytes, client: str
) -> tuple[enrolment_pb2.IssuedCertificate, str, float]:
    """Certify a client's key; returns the reply, the serial and the end of its life."""
    chain, peer = await world.in_disk(
        authority.issue_client,
        csr_pem,
        client,
        world.config.client_certificate_s,
        datetime.now(UTC),
    )
    reply = enrolment_pb2.IssuedCertificate(
        federation=authority.federation,
        client=client,
        chain_pem=chain,
        root_pem=authority.root_pem,
        unix_time=time.time(),
    )
    if world.signing is not None:
        world.signing.tell(reply)
    return reply, peer.serial, peer.not_after.timestamp()


def _wrong_identity(client: str, claimed: str) -> Refusal:
    return Refusal(
        Code.WRONG_IDENTITY,
        f"Expected the name in the certificate, {client!r}, got {claimed[:80]!r}.",
    )


def _no_room(error: OSError) -> Refusal:
    return Refusal(
        Code.OUT_OF_SPACE, "The server cannot store the update now: try later.", detail=repr(error)
    )
