"""Who is calling: the certificate of a connection, held against the ledger on every call.

A certificate that was revoked or has expired goes on working on a live connection, so neither the
handshake nor a check at the start of a stream is enough: every call asks, and a sweeper asks for
the streams that are idle.
"""

from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc

from fedloom.protocol import wire
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.identity import Peer, check_client_name, peer_from_pem
from fedloom.server.world import World

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
        world: for the ledger.
        plaintext: believe the name in the metadata; for loopback without TLS only.
    """

    def __init__(self, world: World, *, plaintext: bool) -> None:
        self._world = world
        self._plaintext = plaintext

    async def __call__(self, context: Context) -> tuple[str, Peer | None]:
        """The client's name, and its certificate where there is one.

        Raises:
            Refusal: NO_CERTIFICATE, UNKNOWN_CLIENT, REVOKED or EXPIRED.
        """
        if self._plaintext:
            metadata = dict(context.invocation_metadata() or ())
            return check_client_name(str(metadata.get(wire.CLIENT_KEY, ""))), None
        pem = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        peer = peer_from_pem(pem)
        check_not_expired(peer, datetime.now(UTC))
        world = self._world
        await world.in_ledger(world.ledger.check_certificate, peer.serial, peer.client)
        return peer.client, peer
