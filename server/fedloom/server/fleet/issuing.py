"""Issues clients' certificates, on enrolment and on renewal."""

import time
from datetime import UTC, datetime

from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.fleet.context import FleetContext
from fedloom.server.pki.authority import Authority


async def issue(
    server: FleetContext, authority: Authority, csr_pem: bytes, client: str
) -> tuple[enrolment_pb2.IssuedCertificate, str, float]:
    """Certify a client's key; returns the reply, the serial and the expiry, a Unix time."""
    chain, peer = await server.in_disk(
        authority.issue_client,
        csr_pem,
        client,
        server.config.client_certificate_s,
        datetime.now(UTC),
    )
    reply = enrolment_pb2.IssuedCertificate(
        federation=authority.federation,
        client=client,
        chain_pem=chain,
        root_pem=authority.root_pem,
        unix_time=time.time(),
    )
    if server.signing is not None:
        server.signing.tell(reply)
    return reply, peer.serial, peer.not_after.timestamp()
