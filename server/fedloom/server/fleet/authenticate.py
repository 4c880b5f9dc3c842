"""Who is calling: the certificate of a connection, held against the ledger on every call.

A certificate that was revoked or has expired goes on working on a live connection, so neither the
handshake nor a check at the start of a stream is enough: every call asks, and a sweeper asks for
the streams that are idle.
"""

from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import Peer, check_client_name, peer_from_pem
from fedloom.server.fleet.context import FleetContext

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def check_not_expired(peer: Peer, now: datetime) -> None:
    """Is the certificate still good?

    Raises:
        Refusal: EXPIRED.
    """
    if now >= peer.not_after:
        raise Refusal(
            Code.EXPIRED,
            f"The certificate of {peer.client!r} ended {peer.not_after:%Y-%m-%d %H:%M} UTC: "
            "enrol again with a new token.",
        )


class Identify:
    """Answers who is calling.

    Args:
        server: its context.
        plaintext: believe the name in the metadata; for loopback without TLS only.
    """

    def __init__(self, server: FleetContext, *, plaintext: bool) -> None:
        self._server = server
        self._plaintext = plaintext

    def claimed(self, context: Context) -> str:
        """The name in the certificate, good or not, for the records; empty if there is none."""
        try:
            return "" if self._plaintext else _peer(context).client
        except Refusal:
            return ""

    def caller(self, context: Context) -> tuple[str, Peer | None]:
        """Who says to be calling: a name, and its certificate where there is one.

        Raises:
            Refusal: NO_CERTIFICATE or EXPIRED.
        """
        if self._plaintext:
            return _named(context), None
        peer = _peer(context)
        check_not_expired(peer, datetime.now(UTC))
        return peer.client, peer

    async def check(self, peer: Peer | None) -> None:
        """Is the certificate one of ours, and still good?

        Raises:
            Refusal: UNKNOWN_CLIENT or REVOKED.
        """
        if peer is not None:
            server = self._server
            await server.in_ledger(server.ledger.check_certificate, peer.serial, peer.client)


def _peer(context: Context) -> Peer:
    return peer_from_pem(next(iter(context.auth_context().get("x509_pem_cert", ())), b""))


def _named(context: Context) -> str:
    metadata = dict(context.invocation_metadata() or ())
    try:
        return check_client_name(str(metadata.get(methods.CLIENT_KEY, "")))
    except UsageError as error:
        raise Refusal(Code.NO_CERTIFICATE, f"{methods.CLIENT_KEY}: {error}") from None
