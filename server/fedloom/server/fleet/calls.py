"""Admits calls of authenticated clients, and ends refused ones.

Invariants: every refusal goes to the caller, is counted in metrics and ledger, and affects no other
call. A call is registered with the fleet before the ledger is asked about its client, which answers
from memory what it has checked before; whoever shuts a client out then ends its registered calls.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc

from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.transport import methods
from fedloom.protocol.transport.status import grpc_status
from fedloom.protocol.version import SERVER_VERSIONS
from fedloom.server.fleet.authenticate import Context, caller, claimed
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.pacing import address_of
from fedloom.server.fleet.sessions import Call
from fedloom.server.ledger.replicas.lease_rows import LeaseLostError
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import CALL, UPDATE

log = logging.getLogger(__name__)

READ_TIMEOUT_S = 60.0
"""Longest silence in the middle of an upload, and before the first message of a stream."""


class Calls:
    """Admits calls.

    Args:
        server: its context.
        plaintext: trust the name in the metadata; only for loopback without TLS.
    """

    def __init__(self, server: FleetContext, *, plaintext: bool) -> None:
        self._server = server
        self._plaintext = plaintext

    @asynccontextmanager
    async def enter(self, context: Context) -> AsyncIterator[Call]:
        """Enter a call of an authenticated client; any `Refusal` inside ends it with its code."""
        handler = asyncio.current_task()
        assert handler is not None
        call = Call("", None, handler)
        try:
            call.client, call.peer = caller(context, plaintext=self._plaintext)
            with self._server.fleet.calling(call):
                await self._server.pace.call(call.client)
                ledger, peer = self._server.ledger, call.peer
                if peer is not None and not ledger.is_checked(peer.serial, peer.client):
                    check = ledger.check_certificate
                    await self._server.in_ledger(check, peer.serial, peer.client)
                yield call
        except TimeoutError:
            refusal = Refusal(Code.TRUNCATED, f"Expected a message within {READ_TIMEOUT_S:.0f} s.")
            await self._refuse(context, call, refusal)
        except Refusal as refusal:
            await self._refuse(context, call, refusal)
        except LeaseLostError as error:  # it is told to try again, at another server
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except asyncio.CancelledError:
            if call.refusal is None:
                raise
            handler.uncancel()
            self.count(context, call, call.refusal)
            await abort(context, call.refusal)

    async def _refuse(self, context: Context, call: Call, refusal: Refusal) -> None:
        peer = self.count(context, call, refusal)
        await self._server.pace.refusal(peer)
        await abort(context, refusal)

    def count(self, context: Context, call: Call, refusal: Refusal) -> str:
        """Count a refusal in ledger, metrics and log; returns the key of the caller's buckets."""
        client = call.client or ("" if self._plaintext else claimed(context))
        run, number = printable(call.task[0], 80), call.task[1]
        server = self._server
        server.refusals.add(client, run, number, refusal)
        peer = client or address_of(context.peer())
        if server.pace.is_logged(peer):
            log.warning(
                "refused %s (run %s, round %d): %s: %s %s",
                client or context.peer(), run, number, refusal.code, refusal, refusal.detail,
                extra=about(client, run, number),
            )  # fmt: skip
        server.meters.refusals.labels(UPDATE if run else CALL, refusal.code.value).inc()
        server.records.refused(call.task, client, refusal.code, str(refusal))
        call.refused(client, refusal)
        return peer


def check_named(call: Call, claimed: str) -> None:
    """Check that a message names the client whose call it came in.

    Raises:
        Refusal: WRONG_IDENTITY.
    """
    if claimed != call.client:
        raise Refusal(
            Code.WRONG_IDENTITY,
            f"Expected the name in the certificate, {call.client!r}, got {claimed[:80]!r}.",
        )


def check_version(versions: Iterable[int]) -> int:
    """The newest protocol version that both sides know.

    Raises:
        Refusal: VERSION_UNSUPPORTED.
    """
    theirs = list(versions)
    common = set(theirs) & set(SERVER_VERSIONS)
    if not common:
        raise Refusal(
            Code.VERSION_UNSUPPORTED,
            f"Expected a protocol version of {list(SERVER_VERSIONS)}, "
            f"got {theirs[:8]}: upgrade the older side.",
        )
    return max(common)


async def abort(context: Context, refusal: Refusal) -> None:
    """End a call with a typed refusal."""
    # The details are cut, as percent-encoding may triple them; the metadata has the whole message.
    details = printable(str(refusal), 250)
    try:
        await context.abort(grpc_status(refusal.code), details, methods.refusal_metadata(refusal))
    except grpc.aio.InternalError:  # it has gone, or reads nothing, so no status can be sent
        raise asyncio.CancelledError from None
