"""The enrolment service: a one-time token becomes a client's first certificate.

It has a port of its own because a server that asks every peer for a certificate cannot serve
those that have none yet.
"""

import hmac
import logging
import time
from dataclasses import dataclass

import grpc

from fedloom.protocol import tokens, wire
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server.identify import Context
from fedloom.server.pki import Authority
from fedloom.server.service import abort, issue
from fedloom.server.world import World

log = logging.getLogger(__name__)


class EnrolmentService:
    """Handlers of `fedloom.v1.Enrolment`.

    Args:
        world: shared parts.
        authority: issues the certificates.
        fleet_port: where enrolled clients connect.
    """

    def __init__(self, world: World, authority: Authority, fleet_port: int) -> None:
        self._world = world
        self._fleet_port = fleet_port
        self._authority = authority

    def handlers(self) -> grpc.GenericRpcHandler:
        """What to register with a server."""
        return grpc.method_handlers_generic_handler(
            wire.ENROLMENT_SERVICE,
            {
                "Enrol": grpc.unary_unary_rpc_method_handler(
                    self.enrol,
                    response_serializer=enrolment_pb2.IssuedCertificate.SerializeToString,
                )
            },
        )

    async def enrol(self, raw: bytes, context: Context) -> enrolment_pb2.IssuedCertificate:
        """A token and a CSR in, a certificate out."""
        world, caller = self._world, _Caller()
        try:
            return await self._enrol(wire.parse(enrolment_pb2.EnrolRequest, raw), caller)
        except Refusal as refusal:
            log.warning(
                "enrolment of %s from %s refused: %s: %s",
                caller.name or "nobody", context.peer(), refusal.code, refusal,
            )  # fmt: skip
            await world.in_ledger(world.ledger.add_refusal, caller.name, "", 0, refusal)
            await abort(context, refusal)
        raise AssertionError("aborted")

    async def _enrol(
        self, request: enrolment_pb2.EnrolRequest, caller: "_Caller"
    ) -> enrolment_pb2.IssuedCertificate:
        if not set(request.protocol_versions) & set(PROTOCOL_VERSIONS):
            raise Refusal(
                Code.VERSION_UNSUPPORTED,
                f"Expected a protocol version of {list(PROTOCOL_VERSIONS)}, "
                f"got {list(request.protocol_versions[:8])}: upgrade the older side.",
            )
        world = self._world
        token = tokens.parse_token(request.token)
        row = await world.in_ledger(world.ledger.token, token.id)
        if row is None or not tokens.secret_matches(token.secret, row["secret_hash"]):
            raise Refusal(Code.BAD_TOKEN, "Expected a token of this server: ask for a new one.")
        caller.name = row["client"]
        if not hmac.compare_digest(token.pin, self._authority.root_pin):
            raise Refusal(Code.BAD_TOKEN, "Expected a token of this server's authority.")
        if row["used_at"] is not None:
            raise Refusal(Code.BAD_TOKEN, "This token was used before: ask for a new one.")
        if time.time() >= row["expires_at"]:
            raise Refusal(Code.BAD_TOKEN, "This token has expired: ask for a new one.")
        reply, serial, not_after = await issue(world, self._authority, request.csr_pem, caller.name)
        await world.in_ledger(world.ledger.enrol, token.id, serial, not_after)
        reply.fleet_port = self._fleet_port
        world.live.changed("clients")
        world.live.changed("tokens")
        log.info("%s enrolled", caller.name)
        return reply


@dataclass(slots=True)
class _Caller:
    """Whom a token that proved to be ours is for; nobody before that."""

    name: str = ""
