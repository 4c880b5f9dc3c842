"""Issues clients' certificates, on enrolment and on renewal.

Invariant: of a client, at most one renewed certificate is issued per `NEW_EVERY` of its life.
"""

import math
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.fleet.context import FleetContext
from fedloom.server.ledger.rows import RenewalRow
from fedloom.server.pki import certificates
from fedloom.server.pki.authority import Authority

NEW_EVERY = 0.1
"""Part of a certificate's life after which its client may get another one."""


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
    reply = _reply(server, authority, client, chain)
    return reply, peer.serial, peer.not_after.timestamp()


async def renew(
    server: FleetContext, authority: Authority, csr_pem: bytes, client: str, how: str, **more: Any
) -> enrolment_pb2.IssuedCertificate:
    """Certify a client's key again; `how` and `more` are for the audit trail.

    A repeat over the same key is answered with the same certificate: the answer may have been lost.

    Raises:
        Refusal: BAD_CSR, or BUSY: a certificate over another key was issued less than
            `NEW_EVERY` of its life ago, or is being issued.
    """
    if client in server.renewing:
        raise Refusal(Code.BUSY, "Another renewal of this client is in progress: try again.")
    server.renewing.add(client)
    try:
        key = await server.in_disk(certificates.key_of, csr_pem)
        latest = await server.in_reader(server.ledger.renewal, client)
        repeat = partial(server.ledger.repeat_renewal, client, key)
        if latest is not None and _is_repeat(latest, key) and await server.in_ledger(repeat):
            return _reply(server, authority, client, latest.chain.encode())
        reply, serial, not_after = await issue(server, authority, csr_pem, client)
        add = partial(
            server.ledger.add_certificate,
            key=key,
            chain=reply.chain_pem.decode(),
            ended_before=time.time() - server.config.late_renewal_s,
        )
        detail = {"serial": serial, **more}
        async with server.audit_log.around(client, how, "client.renew", client, detail):
            await server.in_ledger(add, serial, client, not_after)
        return reply
    finally:
        server.renewing.discard(client)


def _is_repeat(latest: RenewalRow, key: str) -> bool:
    """Whether a request gets the latest certificate again; False for a new one.

    Raises:
        Refusal: BUSY, it is too early for a new one.
    """
    life_s = latest.not_after - latest.issued_at
    wait_s = latest.issued_at + NEW_EVERY * life_s - time.time()
    if wait_s > 0 and key != latest.key:
        raise Refusal(
            Code.BUSY,
            "Expected the key of the latest certificate, or a longer wait since it was issued: "
            f"repeat the request with that key, or try again in {math.ceil(wait_s)} s.",
        )
    return wait_s > 0


def _reply(
    server: FleetContext, authority: Authority, client: str, chain_pem: bytes
) -> enrolment_pb2.IssuedCertificate:
    reply = enrolment_pb2.IssuedCertificate(
        federation=authority.federation,
        client=client,
        chain_pem=chain_pem,
        root_pem=authority.root_pem,
        unix_time=time.time(),
    )
    if server.signing is not None:
        server.signing.tell(reply)
    return reply
