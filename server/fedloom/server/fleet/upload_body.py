"""The body of one update on its way from a stream to the disk, checked as it comes.

Invariants: a byte is checked before it is written; what came before a cut is checked again, and
thrown away if it is not what was announced.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.body import BodyChecker, BodyStats
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import READ_TIMEOUT_S
from fedloom.server.fleet.context import FleetContext
from fedloom.server.metrics.meters import timed
from fedloom.server.storage.spool import SpoolFile

MIN_BYTES_PER_S = 1024
"""Slowest upload that keeps its place, after a first minute; what has come stays."""

RESCAN_BYTES = 1 << 20

WRITE_BACK_BYTES = 4 << 20
"""Bytes of a body that come before the disk is told to begin on them."""


class IncomingBody:
    """A body that comes; call `rescan`, then `read`, then `finish`.

    Args:
        server: its context.
        file: of the spool, with what came before a cut.
        checker: which has seen nothing yet.
    """

    def __init__(self, server: FleetContext, file: SpoolFile, checker: BodyChecker) -> None:
        self._server = server
        self._file = file
        self._checker = checker

    async def rescan(self) -> None:
        """Check what came before a cut, in a thread: it may be long.

        Raises:
            Refusal: it is not what was announced; it is forgotten.
        """
        file, checker = self._file, self._checker

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

    async def read(self, context: Context, passed: Callable[[int], None]) -> None:
        """Read the body from where it stands to its end.

        Args:
            context: of the stream.
            passed: told of the bytes of each message; raises when nobody wants the rest.

        Raises:
            Refusal: TRUNCATED, OVERLONG, or what the checker found.
        """
        file = self._file
        begun, before = time.monotonic(), file.received
        async with _written_early(self._server, file) as keep_up:
            while file.received < file.size_bytes:
                _check_pace(time.monotonic() - begun, file.received - before)
                size_bytes = await self._read_chunk(context)
                keep_up()
                passed(size_bytes)
            async with asyncio.timeout(READ_TIMEOUT_S):
                rest = await context.read()
        if rest is not grpc.aio.EOF:
            raise Refusal(Code.OVERLONG, f"Expected {file.size_bytes} bytes as declared, got more.")

    async def _read_chunk(self, context: Context) -> int:
        file, checker = self._file, self._checker
        async with asyncio.timeout(READ_TIMEOUT_S):
            chunk = await context.read()
        if chunk is grpc.aio.EOF:
            raise Refusal(
                Code.TRUNCATED,
                f"Expected {file.size_bytes} bytes as declared, got {file.received}.",
            )
        if checker.slow:
            await self._server.in_disk(checker.feed, chunk)
        else:
            checker.feed(chunk)
        file.append(chunk)
        crossing("upload.chunk")
        return len(chunk)

    async def finish(self) -> BodyStats:
        """Hold the whole body against what was announced, and sync it.

        Raises:
            Refusal: it is not what was announced; it is forgotten.
        """
        server, checker = self._server, self._checker
        try:
            stats = await server.in_disk(checker.finish) if checker.slow else checker.finish()
        except Refusal:
            self._file.restart()
            raise
        server.meters.checksum_s.observe(checker.spent_s)
        with timed(server.meters.sync_s):
            await server.in_disk(self._file.sync)
        return stats


def _check_pace(spent_s: float, received_bytes: int) -> None:
    if (spent_s - READ_TIMEOUT_S) * MIN_BYTES_PER_S > received_bytes:
        raise Refusal(
            Code.TRUNCATED,
            f"Expected at least {MIN_BYTES_PER_S} bytes a second while others wait: "
            "go on from here when there is a place again.",
        )


@asynccontextmanager
async def _written_early(
    server: FleetContext, file: SpoolFile
) -> AsyncIterator[Callable[[], None]]:
    """Have the disk begin on a body while it comes; yields what to call as it does.

    So the sync at its end finds little left: 4 ms instead of 120 with eight bodies of 40 MB.
    """
    writing: asyncio.Future[None] | None = None

    def keep_up() -> None:
        nonlocal writing
        if file.unwritten >= WRITE_BACK_BYTES and (writing is None or writing.done()):
            writing = asyncio.ensure_future(server.in_disk(file.write_back))

    try:
        yield keep_up
    finally:
        if writing is not None:
            await asyncio.wait([writing])
