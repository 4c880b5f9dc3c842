"""Receives updates: a header, then after `proceed` a body; replies `accepted`.

The round admits an update by its header; `BodyChecker` checks its bytes.

Invariants: one upload of an update at a time. An accepted update is synced. A repeat of an accepted
update is answered `accepted`, even if its round has ended, after a commit of its own.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from fedloom.protocol import tracing
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.tracing import NO_SPAN, Span
from fedloom.protocol.transport import methods
from fedloom.protocol.updates.header import PlannedPart, header_limit_bytes
from fedloom.protocol.updates.site_members import read_members
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import to_the_end
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import READ_TIMEOUT_S, check_named
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.reporting_rounds import ReportingRound, ReportingRounds
from fedloom.server.fleet.sessions import Call
from fedloom.server.fleet.transfer_slots import Transfer
from fedloom.server.fleet.upload_body import IncomingBody
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.rows import UpdateRow
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.fold import metrics_of
from fedloom.server.rounds.member_records import Record
from fedloom.server.storage.spool import SpoolFile
from fedloom.server.threads import Grouped

MIN_HEADER_BYTES = 1 << 18
"""Headers up to this length are always parsed: a repeat may arrive after its run has ended."""


@dataclass(frozen=True, slots=True)
class _Admitted:
    """An update that was admitted by its header."""

    round: ReportingRound
    header: fleet_pb2.UpdateHeader
    planned: list[PlannedPart]
    identity: str
    seen: Record

    @property
    def plan(self) -> RoundPlan:
        """The plan of its round."""
        return self.round.plan_of(self.header.task.round)


class Uploads:
    """Receives updates."""

    def __init__(self, server: FleetContext, rounds: ReportingRounds) -> None:
        self._server = server
        self._rounds = rounds
        self._under_way: set[tuple[str, int, str]] = set()
        self._repeat: Grouped[UpdateRow, bool] = Grouped(server.in_ledger, server.ledger.repeat_all)

    async def serve(self, call: Call, context: Context) -> None:
        """Receive one update from its stream.

        Raises:
            Refusal: the update is not admitted or not valid.
        """
        async with asyncio.timeout(READ_TIMEOUT_S):
            raw = await context.read()
        header = self._parse_header(raw)
        call.task = (header.task.run, header.task.round)
        check_named(call, header.client)
        with self._span(header, context):
            repeated = await self._receive(header, context, call)
        reply = fleet_pb2.UploadReply(accepted=fleet_pb2.Accepted(repeated=repeated))
        await context.write(reply.SerializeToString())

    def _span(self, header: fleet_pb2.UpdateHeader, context: Context) -> Span:
        """Span of an upload, under the client's span if that belongs to the round's trace."""
        tracer = self._server.tracer
        if not tracer.on:
            return NO_SPAN
        run, number = printable(header.task.run, 80), header.task.round
        above = self._rounds.trace_of(header.task.run)
        given = dict(context.invocation_metadata() or ()).get(tracing.KEY)
        parent = tracing.checked(given, above) or above
        client, size = header.client, header.size_bytes
        return tracer.span("accept", parent, run=run, round=number, client=client, bytes=size)

    def _parse_header(self, raw: object) -> fleet_pb2.UpdateHeader:
        """Parse a header that is not too long for all runs; parsing amplifies memory."""
        longest = max(MIN_HEADER_BYTES, self._rounds.longest_header_bytes())
        if isinstance(raw, bytes) and len(raw) > longest:
            raise Refusal(
                Code.TOO_LARGE, f"Expected a header of at most {longest} bytes, got {len(raw)}."
            )
        return methods.parse(fleet_pb2.UpdateHeader, raw)

    async def _receive(self, header: fleet_pb2.UpdateHeader, context: Context, call: Call) -> bool:
        """Receive an update; True if it was accepted before."""
        identity = hashlib.sha256(header.SerializeToString(deterministic=True)).hexdigest()
        key = (header.task.run, header.task.round)
        lacks = self._rounds.lacks(header) and not header.masking_session
        if not lacks and await self._known(key, header, identity):
            return True
        round_ = await self._rounds.find(header)
        call.refused = partial(round_.refused, number=key[1])
        _check_length(header, round_.plan)
        self._server.fleet.check(header.client)
        planned = round_.admit(header)
        seen = self._server.records.uploading(key, header.client)
        with self._alone((*key, header.client)):
            if not header.size_bytes:
                return not await self._accept(round_, header, identity, "", 0.0)
            async with self._server.uploads.enter(call) as transfer:
                round_.check_open(header.client, key[1])  # may have closed meanwhile
                admitted = _Admitted(round_, header, planned, identity, seen)
                return await self._receive_body(admitted, context, transfer)

    async def _known(
        self, key: tuple[str, int], header: fleet_pb2.UpdateHeader, identity: str
    ) -> bool:
        """Whether this update was accepted before.

        Raises:
            Refusal: CONFLICTING_UPDATE, another update was.
        """
        server = self._server
        row = await server.in_ledger(server.ledger.find_update, *key, header.client)
        known = None if row is None else row.identity
        if known is None and header.masking_session:
            known = await server.in_ledger(server.ledger.body_digest, *key, header.client)
        if known is None:
            return False
        if known != identity:
            raise Refusal(
                Code.CONFLICTING_UPDATE,
                "This client's update of this round was accepted before; this one differs from it.",
            )
        if row is not None:
            return await self._repeat(row)
        return await server.in_ledger(server.ledger.repeat_body, *key, header.client)

    @contextmanager
    def _alone(self, slot: tuple[str, int, str]) -> Iterator[None]:
        if slot in self._under_way:
            raise Refusal(Code.BUSY, "Another upload of this update is in progress: try again.")
        self._under_way.add(slot)
        try:
            yield
        finally:
            self._under_way.discard(slot)

    async def _receive_body(
        self, admitted: _Admitted, context: Context, transfer: Transfer
    ) -> bool:
        plan, header, begun = admitted.plan, admitted.header, time.monotonic()
        try:
            file = self._server.spool.open(plan.run, plan.number, header)
        except OSError as error:
            raise _no_room(error) from error
        try:
            norm = await self._fill(file, admitted, context, transfer)
        except TimeoutError:  # an OSError too, but not of the disk: the client was silent
            raise
        except OSError as error:
            raise _no_room(error) from error
        finally:
            file.close()
        first = await self._accept(admitted.round, header, admitted.identity, file.name, norm)
        self._server.meters.upload_s.observe(time.monotonic() - begun)
        return not first

    async def _fill(
        self, file: SpoolFile, admitted: _Admitted, context: Context, transfer: Transfer
    ) -> float:
        """Receive and sync a body; returns its norm."""
        server, round_, header = self._server, admitted.round, admitted.header
        meters = self._server.meters
        body = IncomingBody(server, file, round_.checker(header, admitted.planned))
        await body.rescan()
        if server.remote is not None:
            self._check_still_open(round_, header, file)
        proceed = fleet_pb2.UploadReply(proceed=fleet_pb2.Proceed(offset=file.received))
        await context.write(proceed.SerializeToString())

        async def passed(size_bytes: int) -> None:
            admitted.seen.bytes_up += size_bytes
            meters.received.inc(size_bytes)
            await transfer.passed(size_bytes)
            server.fleet.check(header.client)
            round_.check_open(header.client, header.task.round)

        await body.read(context, transfer, passed)
        stats = await body.finish()
        admitted.seen.upload_ended_at = time.time()
        crossing("upload.synced")
        return stats.norm

    def _check_still_open(
        self, round_: ReportingRound, header: fleet_pb2.UpdateHeader, file: SpoolFile
    ) -> None:
        """Check that the round is open after the object store was asked for the body's parts.

        The row of a body that was begun as its round ended would be left.
        """
        try:
            round_.check_open(header.client, header.task.round)
        except Refusal:
            file.give_up()
            raise

    async def _accept(
        self,
        round_: ReportingRound,
        header: fleet_pb2.UpdateHeader,
        identity: str,
        file: str,
        norm: float,
    ) -> bool:
        self._server.fleet.check(header.client)  # while its body was synced
        measured = header.site if header.HasField("site") else header
        update = AcceptedUpdate(
            run=round_.plan.run,
            round=header.task.round,
            client=header.client,
            identity=identity,
            file=file,
            size_bytes=header.size_bytes,
            weight=header.weight,
            norm=norm,
            training=metrics_of(measured.training),
            evaluation=metrics_of(measured.evaluation),
            devices=header.site.devices or None,
            members=read_members(header.site),
        )
        # If the caller disconnects now, the round must still learn of the committed row.
        return await to_the_end(round_.accept(update))


def _check_length(header: fleet_pb2.UpdateHeader, plan: RoundPlan) -> None:
    longest = header_limit_bytes(plan.manifest, len(plan.limits.groups))
    if header.ByteSize() > longest:
        raise Refusal(Code.TOO_LARGE, f"Expected a header of at most {longest} bytes, got more.")


def _no_room(error: OSError) -> Refusal:
    return Refusal(
        Code.OUT_OF_SPACE, "The server cannot store the update now: try later.", detail=repr(error)
    )
