"""Sends models to authenticated clients, from any offset on."""

import asyncio
import logging
import os
import time
from pathlib import Path

import grpc

from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import READ_TIMEOUT_S, Calls, abort
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.reporting_rounds import ReportingRounds
from fedloom.server.fleet.sessions import Call
from fedloom.server.fleet.transfer_slots import Transfer
from fedloom.server.rounds.member_records import Record

log = logging.getLogger(__name__)

_UNREAD = f"Expected a client that reads; it read nothing for {READ_TIMEOUT_S:.0f} s."


class Downloads:
    """Sends models, and what open rounds send beside them."""

    def __init__(self, server: FleetContext, rounds: ReportingRounds, calls: Calls) -> None:
        self._server = server
        self._rounds = rounds
        self._calls = calls

    async def serve(self, call: Call, request: fleet_pb2.DownloadRequest, context: Context) -> None:
        """Send the requested model.

        Raises:
            Refusal: UNKNOWN_MODEL.
        """
        server = self._server
        listed = await self._rounds.file_for(call.client, request.digest)
        known = listed is not None or await self._rounds.offers(request.digest)
        if not known and not await server.in_ledger(server.ledger.knows_model, request.digest):
            raise Refusal(
                Code.UNKNOWN_MODEL, f"Expected a model of this server, got {request.digest!r}."
            )
        seen, needed = self._rounds.record_of(call.client, request.digest)
        seen.downloading(resumed=request.offset > 0)
        slots = server.downloads if needed else server.extra_downloads
        async with slots.enter(call) as transfer:
            whole = await self._send(listed, request, context, transfer, seen, is_extra=not needed)
            if not whole:
                # gRPC sends this after what is in flight, and holds that in memory until then: so
                # it is counted now, and the transfer until its end.
                transfer.give_up()
                refusal = Refusal(Code.TRUNCATED, _UNREAD)
                self._calls.count(context, call, refusal)
                await abort(context, refusal)

    async def _send(
        self, listed: Path | None, request: fleet_pb2.DownloadRequest, context: Context,
        transfer: Transfer, seen: Record, *, is_extra: bool,
    ) -> bool:  # fmt: skip
        """Send a listed file, or a model, from an offset on; False if the peer does not read."""
        sent = self._server.meters.sent
        handle = await self._open(listed, request.digest)
        try:
            offset = min(request.offset, os.fstat(handle).st_size)
            while chunk := os.pread(handle, transfer.chunk_bytes, offset):
                begun = time.monotonic()
                with transfer.idle():
                    async with asyncio.timeout(READ_TIMEOUT_S):
                        await context.write(chunk)
                offset += len(chunk)
                seen.bytes_down += len(chunk)
                sent.inc(len(chunk))
                await transfer.passed(len(chunk), time.monotonic() - begun)
                if is_extra and self._rounds.open_rounds:
                    await self._server.extra_rate.passed(len(chunk))
            seen.downloaded()
        except TimeoutError:
            return False
        except grpc.aio.InternalError:
            log.info("%s disconnected during a download", context.peer())
            raise asyncio.CancelledError from None
        finally:
            os.close(handle)
        return True

    async def _open(self, listed: Path | None, digest: str) -> int:
        """Open a listed file, or a model, which an object store may have to return first."""
        server = self._server
        try:
            return os.open(listed or server.models.path(digest), os.O_RDONLY)
        except FileNotFoundError:
            if listed is not None or server.remote is None:
                raise _pruned() from None
        try:
            return os.open(await server.in_bodies(server.models.local, digest), os.O_RDONLY)
        except (FileNotFoundError, IntegrityError):
            raise _pruned() from None
        except OSError as error:
            raise Refusal(
                Code.BUSY, "The server cannot read the model now: try again.", detail=str(error)
            ) from error


def _pruned() -> Refusal:
    return Refusal(
        Code.UNKNOWN_MODEL, "Expected a model that is still kept, got one that was pruned."
    )
