"""Authenticates callers by the certificate of their connection; `Calls` checks it in the ledger.

TLS does not end a connection whose certificate expires or is revoked. So the handshake is not
enough: every call is checked, and `fedloom.server.app` checks open streams regularly.
"""

from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import Peer, check_client_name, peer_from_pem

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def claimed(context: Context) -> str:
    """The name in the certificate, valid or not, for records; empty without one."""
    try:
        return _peer(context).client
    except Refusal:
        return ""


def caller(context: Context, *, plaintext: bool) -> tuple[str, Peer | None]:
    """The caller's name and certificate; the ledger is not queried.

    Args:
        context: of the call.
        plaintext: trust the name in the metadata, without a certificate; only for loopback.

    Raises:
        Refusal: NO_CERTIFICATE or EXPIRED.
    """
    if plaintext:
        return _named(context), None
    peer = _peer(context)
    if datetime.now(UTC) >= peer.not_after:
        raise Refusal(
            Code.EXPIRED,
            f"The certificate of {peer.client!r} expired {peer.not_after:%Y-%m-%d %H:%M} UTC: "
            "enrol again with a new token.",
        )
    return peer.client, peer


def _peer(context: Context) -> Peer:
    return peer_from_pem(next(iter(context.auth_context().get("x509_pem_cert", ())), b""))


def _named(context: Context) -> str:
    metadata = dict(context.invocation_metadata() or ())
    try:
        return check_client_name(str(metadata.get(methods.CLIENT_KEY, "")))
    except UsageError as error:
        raise Refusal(Code.NO_CERTIFICATE, f"{methods.CLIENT_KEY}: {error}") from None
