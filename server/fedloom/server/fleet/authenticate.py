"""Authenticates callers: each call checks the connection's certificate in the ledger.

TLS does not end a connection whose certificate expires or is revoked. So the handshake is not
enough: every call is checked, and `fedloom.server.app` checks open streams regularly.
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
    """Check that a certificate has not expired.

    Raises:
        Refusal: EXPIRED.
    """
    if now >= peer.not_after:
        raise Refusal(
            Code.EXPIRED,
            f"The certificate of {peer.client!r} expired {peer.not_after:%Y-%m-%d %H:%M} UTC: "
            "enrol again with a new token.",
        )


class Identify:
    """Identifies callers.

    Args:
        server: its context.
        plaintext: trust the name in the metadata; only for loopback without TLS.
    """

    def __init__(self, server: FleetContext, *, plaintext: bool) -> None:
        self._server = server
        self._plaintext = plaintext

    def claimed(self, context: Context) -> str:
        """The name in the certificate, valid or not, for records; empty without one."""
        try:
            return "" if self._plaintext else _peer(context).client
        except Refusal:
            return ""

    def caller(self, context: Context) -> tuple[str, Peer | None]:
        """The caller's name and certificate; the certificate is None on plaintext.

        Raises:
            Refusal: NO_CERTIFICATE or EXPIRED.
        """
        if self._plaintext:
            return _named(context), None
        peer = _peer(context)
        check_not_expired(peer, datetime.now(UTC))
        return peer.client, peer

    async def check(self, peer: Peer | None) -> None:
        """Check that the certificate is in the ledger and not revoked.

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
