"""Issues clients' certificates, on enrolment and on renewal."""

import time
from datetime import UTC, datetime
from typing import Any

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


async def renew(
    server: FleetContext, authority: Authority, csr_pem: bytes, client: str, how: str, **more: Any
) -> enrolment_pb2.IssuedCertificate:
    """Certify a client's key again; `how` and `more` are for the audit trail."""
    reply, serial, not_after = await issue(server, authority, csr_pem, client)
    detail = {"serial": serial, **more}
    async with server.audit_log.around(client, how, "client.renew", client, detail):
        await server.in_ledger(server.ledger.add_certificate, serial, client, not_after)
    return reply
