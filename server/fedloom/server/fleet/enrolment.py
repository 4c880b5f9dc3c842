"""The enrolment service: exchanges a one-time token for a client's first certificate.

A device that was off when its certificate expired can renew it here for `late_renewal_s` seconds,
if it proves that it has the old key (`fedloom.protocol.trust.late_renewal`). That proves as much as
a handshake; revoked clients are refused. A longer `late_renewal_s` lets devices be off for longer,
but also prolongs the use of a stolen key.

The service has a separate port, because the fleet's port requires a client certificate.
"""

import hmac
import logging
import time
from dataclasses import dataclass
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
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import ENROLMENT
from fedloom.server.pki.authority import Authority

log = logging.getLogger(__name__)


class EnrolmentService:
    """Handlers of `fedloom.v1.Enrolment`; enrolled clients connect to `fleet_port`."""

    def __init__(self, server: FleetContext, authority: Authority, fleet_port: int) -> None:
        self._server = server
        self._fleet_port = fleet_port
        self._authority = authority

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
        server, caller = self._server, _Caller()
        try:
            request = methods.parse(kind, raw)
            check_version(request.protocol_versions)  # type: ignore[attr-defined] # both have it
            if isinstance(request, enrolment_pb2.EnrolRequest):
                return await self._enrol(request, caller)
            assert isinstance(request, enrolment_pb2.LateRenewRequest)
            return await self._renew_late(request, caller)
        except Refusal as refusal:
            log.warning(
                "%s of %s from %s refused: %s: %s",
                what, caller.name or "unknown", context.peer(), refusal.code, refusal,
                extra=about(caller.name),
            )  # fmt: skip
            server.meters.refusals.labels(ENROLMENT, refusal.code.value).inc()
            await server.in_ledger(server.ledger.add_refusal, caller.name, "", 0, refusal)
            detail = {
                "code": str(refusal.code), "reason": printable(str(refusal)), "what": what,
                "address": printable(context.peer(), 64),
            }  # fmt: skip
            await server.audit_log.record_limited(
                caller.name, "enrolment", "client.enrol.refused", caller.name, detail
            )
            await abort(context, refusal)
        raise AssertionError("aborted")

    async def _enrol(
        self, request: enrolment_pb2.EnrolRequest, caller: "_Caller"
    ) -> enrolment_pb2.IssuedCertificate:
        server = self._server
        token = tokens.parse_token(request.token)
        row = await server.in_ledger(server.ledger.token, token.id)
        if row is None or not tokens.secret_matches(token.secret, row.secret_hash):
            raise Refusal(Code.BAD_TOKEN, "Expected a token of this server: ask for a new one.")
        caller.name = row.client
        if not hmac.compare_digest(token.pin, self._authority.root_pin):
            raise Refusal(Code.BAD_TOKEN, "Expected a token of this server's authority.")
        if row.used_at is not None:
            raise Refusal(Code.BAD_TOKEN, "This token was used before: ask for a new one.")
        if time.time() >= row.expires_at:
            raise Refusal(Code.BAD_TOKEN, "This token has expired: ask for a new one.")
        reply, serial, not_after = await issue(
            server, self._authority, request.csr_pem, caller.name
        )
        detail = {"token": token.id, "serial": serial}
        name = caller.name
        async with server.audit_log.around(name, "enrolment", "client.enrol", name, detail):
            await server.in_ledger(server.ledger.enrol, token.id, serial, not_after)
        reply.fleet_port = self._fleet_port
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
        await server.in_ledger(server.ledger.check_certificate, peer.serial, peer.client)
        late_s = time.time() - peer.not_after.timestamp()
        if late_s > server.config.late_renewal_s:
            raise Refusal(
                Code.EXPIRED,
                f"The certificate of {peer.client!r} expired {peer.not_after:%Y-%m-%d %H:%M} UTC, "
                f"{late_s / 3600:.0f} hours ago. Late renewal is possible for "
                f"{server.config.late_renewal_s / 3600:.0f} hours: enrol again with a new token.",
            )
        reply = await renew(
            server, self._authority, request.csr_pem, peer.client, "enrolment",
            before=peer.serial, late_s=round(late_s),
        )  # fmt: skip
        reply.fleet_port = self._fleet_port
        name, late_s = peer.client, max(0.0, late_s)
        log.info("%s renewed its certificate %.0f s after expiry", name, late_s, extra=about(name))
        return reply


@dataclass(slots=True)
class _Caller:
    """The client of a verified token or certificate; empty before verification."""

    name: str = ""
