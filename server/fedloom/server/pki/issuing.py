"""Certificates for clients' keys, as they go out: on enrolment and on renewal."""

import time
from datetime import UTC, datetime

from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.context import World
from fedloom.server.pki.authority import Authority


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
