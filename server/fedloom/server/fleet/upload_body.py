"""Receives the body of one update from a stream to the disk, and checks it on the way.

Invariants: bytes are checked before they are written; after an interruption, the received part is
checked again, and dropped if it does not match its header.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.body import BodyStats, Checker
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import READ_TIMEOUT_S
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.transfer_slots import Transfer
from fedloom.server.metrics.meters import timed
from fedloom.server.storage.spool import SpoolFile

MIN_BYTES_PER_S = 1024
"""Mean rate below which an upload is ended after its first minute; its bytes are kept."""

RESCAN_BYTES = 1 << 20

WRITE_BACK_BYTES = 4 << 20
"""Unwritten bytes of a body at which their write-back to disk begins."""


class IncomingBody:
    """The body of one upload; call `rescan`, then `read`, then `finish`.

    Args:
        server: its context.
        file: of the spool, with the bytes of earlier attempts.
        checker: of the body, at its start.
    """

    def __init__(self, server: FleetContext, file: SpoolFile, checker: Checker) -> None:
        self._server = server
        self._file = file
        self._checker = checker

    async def rescan(self) -> None:
        """Check the bytes of earlier attempts, in a thread.

        Raises:
            Refusal: they do not match the header; they are dropped.
            OSError: the object store does not return them.
        """
        file, checker = self._file, self._checker
        if self._server.remote is not None:
            await self._server.in_bodies(file.begin)

        def rescan() -> None:
            while checker.received < file.received:
                left = file.received - checker.received
                checker.feed(file.read(checker.received, min(RESCAN_BYTES, left)))

        if file.received:
            try:
                await self._server.in_disk(rescan)
            except Refusal:
                file.restart()
                raise

    async def read(
        self, context: Context, transfer: Transfer, passed: Callable[[int], Awaitable[None]]
    ) -> None:
        """Read the rest of the body.

        Args:
            context: of the stream.
            transfer: told when the server waits for the client.
            passed: awaited with the length of each message; raises to end the upload.

        Raises:
            Refusal: TRUNCATED, OVERLONG, or the checker's.
        """
        file = self._file
        begun, before = time.monotonic() - transfer.waited_s, file.received
        async with _written_early(self._server, file) as keep_up:
            while file.received < file.size_bytes:
                spent_s = time.monotonic() - transfer.waited_s - begun
                _check_pace(spent_s, file.received - before)
                chunk = await self._read_chunk(context, transfer)
                try:
                    await self._store(chunk)
                except Refusal:
                    await passed(len(chunk))  # a refused chunk was received, too
                    raise
                keep_up()
                await passed(len(chunk))
            rest = await _read(context, transfer)
        if rest is not grpc.aio.EOF:
            raise Refusal(Code.OVERLONG, f"Expected {file.size_bytes} bytes as declared, got more.")

    async def _read_chunk(self, context: Context, transfer: Transfer) -> bytes:
        file = self._file
        chunk: Any = await _read(context, transfer)
        if chunk is grpc.aio.EOF:
            raise Refusal(
                Code.TRUNCATED,
                f"Expected {file.size_bytes} bytes as declared, got {file.received}.",
            )
        return bytes(chunk)

    async def _store(self, chunk: bytes) -> None:
        """Check a chunk and append it to the file."""
        checker = self._checker
        if checker.slow:
            await self._server.in_disk(checker.feed, chunk)
        else:
            checker.feed(chunk)
        self._file.append(chunk)
        crossing("upload.chunk")

    async def finish(self) -> BodyStats:
        """Check the whole body and sync it.

        Raises:
            Refusal: it does not match the header; it is dropped.
        """
        server, checker = self._server, self._checker
        try:
            stats = await server.in_disk(checker.finish) if checker.slow else checker.finish()
        except Refusal:
            self._file.restart()
            raise
        server.meters.checksum_s.observe(checker.spent_s)
        with timed(server.meters.sync_s):
            await server.in_bodies(self._file.sync)
        return stats


async def _read(context: Context, transfer: Transfer) -> Any:
    with transfer.idle():
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await context.read()


def _check_pace(spent_s: float, received_bytes: int) -> None:
    if (spent_s - READ_TIMEOUT_S) * MIN_BYTES_PER_S > received_bytes:
        raise Refusal(
            Code.TRUNCATED,
            f"Expected at least {MIN_BYTES_PER_S} bytes per second. The received bytes are kept: "
            "resume the upload.",
        )


@asynccontextmanager
async def _written_early(
    server: FleetContext, file: SpoolFile
) -> AsyncIterator[Callable[[], None]]:
    """Write a body back to disk while it arrives; yields a function to call after each chunk.

    So the final sync takes 4 ms instead of 120, measured with eight bodies of 40 MB.
    """
    writing: asyncio.Future[None] | None = None

    def keep_up() -> None:
        nonlocal writing
        if file.unwritten >= WRITE_BACK_BYTES and (writing is None or writing.done()):
            writing = asyncio.ensure_future(server.in_bodies(file.write_back))

    try:
        yield keep_up
    finally:
        if writing is not None:
            await asyncio.wait([writing])
