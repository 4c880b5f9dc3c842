"""The enrolment service: exchanges a one-time token for a client's first certificate.

A device that was off when its certificate expired can renew it here for `late_renewal_s` seconds,
if it proves that it has the old key (`fedloom.protocol.trust.late_renewal`). That proves as much as
a handshake; revoked clients are refused. A longer `late_renewal_s` lets devices be off for longer,
but also prolongs the use of a stolen key.

A token that was used gets another certificate over the same key until it expires: the answer may
have been lost.

The service has a separate port, because the fleet's port requires a client certificate.
"""

import asyncio
import hmac
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import late_renewal, tokens
from fedloom.protocol.trust.identity import peer_from_certificate
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import abort, check_version
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.issuing import issue, renew
from fedloom.server.fleet.pacing import address_of
from fedloom.server.ledger.rows import HashedTokenRow
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import ENROLMENT
from fedloom.server.pki import certificates
from fedloom.server.pki.authority import Authority
from fedloom.server.public_names import PublicNames

log = logging.getLogger(__name__)


class EnrolmentService:
    """Handlers of `fedloom.v1.Enrolment`.

    Args:
        server: its context.
        authority: which issues the certificates.
        fleet_port: where enrolled clients connect, on the same host.
        public: names behind one port, where they connect instead; None without.
    """

    def __init__(
        self,
        server: FleetContext,
        authority: Authority,
        fleet_port: int,
        public: PublicNames | None = None,
    ) -> None:
        self._server = server
        self._fleet_port = fleet_port if public is None else public.port
        self._fleet_address = "" if public is None else public.fleet
        self._authority = authority
        self._unused = _UnusedTokens(server)

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers to register with a server."""
        unary = grpc.unary_unary_rpc_method_handler
        issued = enrolment_pb2.IssuedCertificate.SerializeToString
        served: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Enrol": unary(self.enrol, None, issued),
            "RenewLate": unary(self.renew_late, None, issued),
        }
        return grpc.method_handlers_generic_handler(methods.ENROLMENT_SERVICE, served)

    async def enrol(self, raw: bytes, context: Context) -> enrolment_pb2.IssuedCertificate:
        """Exchange a token and a CSR for a certificate."""
        return await self._answered("enrolment", raw, enrolment_pb2.EnrolRequest, context)

    async def renew_late(self, raw: bytes, context: Context) -> enrolment_pb2.IssuedCertificate:
        """Exchange an expired certificate, a CSR and a signature by the old key for a new one."""
        return await self._answered("late renewal", raw, enrolment_pb2.LateRenewRequest, context)

    async def _answered(
        self, what: str, raw: bytes, kind: type[Message], context: Context
    ) -> enrolment_pb2.IssuedCertificate:
        server, caller = self._server, _Caller(address_of(context.peer()))
        try:
            request = methods.parse(kind, raw)
            check_version(request.protocol_versions)  # type: ignore[attr-defined] # both have it
            if isinstance(request, enrolment_pb2.EnrolRequest):
                return await self._enrol(request, caller)
            assert isinstance(request, enrolment_pb2.LateRenewRequest)
            return await self._renew_late(request, caller)
        except Refusal as refusal:
            self._count(what, caller.name, context.peer(), refusal)
            await server.pace.refusal(caller.address)
            await abort(context, refusal)
        raise AssertionError("aborted")

    def _count(self, what: str, client: str, peer: str, refusal: Refusal) -> None:
        server = self._server
        server.refusals.add(client, "", 0, refusal)
        if server.pace.is_logged(address_of(peer)):
            log.warning(
                "%s of %s from %s refused: %s: %s",
                what, client or "unknown", peer, refusal.code, refusal, extra=about(client),
            )  # fmt: skip
        server.meters.refusals.labels(ENROLMENT, refusal.code.value).inc()
        detail = {
            "code": str(refusal.code), "reason": printable(str(refusal)), "what": what,
            "address": printable(peer, 64),
        }  # fmt: skip
        server.audit_log.note(client, "enrolment", "client.enrol.refused", client, detail)

    async def _find(self, token: tokens.Token, address: str) -> HashedTokenRow | None:
        """A token's row; addresses that guess are refused without a look into the ledger.

        A device behind the same address still enrols: its token's id is among the unused ones.
        """
        server = self._server
        wait_s = server.pace.refusals.wait_s(address, time.monotonic())
        if wait_s and token.id not in await self._unused.ids():
            raise Refusal(
                Code.BUSY, "Too many refused enrolments from this address: try again in a minute."
            )
        return await server.in_reader(server.ledger.token, token.id)

    async def _enrol(
        self, request: enrolment_pb2.EnrolRequest, caller: "_Caller"
    ) -> enrolment_pb2.IssuedCertificate:
        server = self._server
        token = tokens.parse_token(request.token)
        row = await self._find(token, caller.address)
        if row is None or not tokens.secret_matches(token.secret, row.secret_hash):
            raise Refusal(Code.BAD_TOKEN, "Expected a token of this server: ask for a new one.")
        caller.name = row.client
        if not hmac.compare_digest(token.pin, self._authority.root_pin):
            raise Refusal(Code.BAD_TOKEN, "Expected a token of this server's authority.")
        name, key = caller.name, await server.in_disk(certificates.key_of, request.csr_pem)
        again = row.used_at is not None  # by this key: its answer may have been lost
        if again and not await server.in_reader(server.ledger.is_enrolled, name, key):
            raise Refusal(Code.BAD_TOKEN, "This token was used before: ask for a new one.")
        if time.time() >= row.expires_at:
            raise Refusal(Code.BAD_TOKEN, "This token has expired: ask for a new one.")
        reply, serial, not_after = await issue(server, self._authority, request.csr_pem, name)
        if again:
            store = partial(server.ledger.enrol_again, name, key, serial, not_after)
        else:
            store = partial(server.ledger.enrol, token.id, serial, not_after, key)
        detail = {"token": token.id, "serial": serial} | ({"again": True} if again else {})
        async with server.audit_log.around(name, "enrolment", "client.enrol", name, detail):
            await server.in_ledger(store)
        server.fleet.register_site(name, row.devices or 0)
        server.fleet.assign(name, row.study or "")
        reply.fleet_port, reply.fleet_address = self._fleet_port, self._fleet_address
        server.live.changed("clients")
        server.live.changed("tokens")
        log.info("%s enrolled", caller.name, extra=about(caller.name))
        return reply

    async def _renew_late(
        self, request: enrolment_pb2.LateRenewRequest, caller: "_Caller"
    ) -> enrolment_pb2.IssuedCertificate:
        server = self._server
        certificate = self._authority.certified(request.certificate_pem)
        peer = peer_from_certificate(certificate)
        if not late_renewal.is_signed(certificate, request.csr_pem, request.signature):
            raise Refusal(
                Code.NO_CERTIFICATE, "Expected a signature by the key of that certificate."
            )
        caller.name = peer.client
        late_s = time.time() - peer.not_after.timestamp()
        if late_s > server.config.late_renewal_s:
            raise Refusal(
                Code.EXPIRED,
                f"The certificate of {peer.client!r} expired {peer.not_after:%Y-%m-%d %H:%M} UTC, "
                f"{late_s / 3600:.0f} hours ago. Late renewal is possible for "
                f"{server.config.late_renewal_s / 3600:.0f} hours: enrol again with a new token.",
            )
        await server.in_ledger(server.ledger.check_certificate, peer.serial, peer.client)
        reply = await renew(
            server, self._authority, request.csr_pem, peer.client, "enrolment",
            before=peer.serial, late_s=round(late_s),
        )  # fmt: skip
        reply.fleet_port, reply.fleet_address = self._fleet_port, self._fleet_address
        name, late_s = peer.client, max(0.0, late_s)
        log.info("%s renewed its certificate %.0f s after expiry", name, late_s, extra=about(name))
        return reply


@dataclass(slots=True)
class _Caller:
    """Who calls.

    Attributes:
        address: the key of its buckets.
        name: the client of a verified token or certificate; empty before verification.
    """

    address: str
    name: str = ""


class _UnusedTokens:
    """Ids of the tokens that may still be used, read anew at most every `FRESH_S` seconds."""

    FRESH_S = 2.0

    def __init__(self, server: FleetContext) -> None:
        self._server = server
        self._ids: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def ids(self) -> frozenset[str]:
        """The ids."""
        async with self._reading:
            if time.monotonic() - self._read_at > self.FRESH_S:
                server = self._server
                self._ids = frozenset(await server.in_reader(server.ledger.unused_tokens))
                self._read_at = time.monotonic()
            return self._ids
