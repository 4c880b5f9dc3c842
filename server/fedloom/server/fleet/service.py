"""The fleet service: dispatches calls, renews certificates and lets clients leave.

`Calls` admits calls; the modules `attend`, `download` and `upload` serve streams, models and
updates.
"""

import logging
import time
from typing import Any

import grpc

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.server.fleet import issuing
from fedloom.server.fleet.attend import Attending, StreamDesk
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.calls import Calls
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.download import Downloads
from fedloom.server.fleet.offered_models import OfferedModels
from fedloom.server.fleet.promoted_model import promoted
from fedloom.server.fleet.reporting_rounds import ReportingRounds
from fedloom.server.fleet.upload import Uploads
from fedloom.server.metrics.log_buffer import about
from fedloom.server.pki.authority import Authority

log = logging.getLogger(__name__)


class FleetService:
    """Handlers of `fedloom.v1.Fleet`.

    Args:
        server: its context.
        desk: handles the messages of clients.
        rounds: that are open.
        authority: None on plaintext loopback.
    """

    def __init__(
        self,
        server: FleetContext,
        desk: StreamDesk,
        rounds: ReportingRounds,
        authority: Authority | None,
    ) -> None:
        self._server = server
        self._authority = authority
        self._calls = Calls(server, plaintext=authority is None)
        self._attending = Attending(server, desk, OfferedModels(server, rounds))
        self._downloads = Downloads(server, rounds, self._calls)
        self._uploads = Uploads(server, rounds)

    def num_streams(self) -> int:
        """Streams of clients that are open."""
        return self._attending.num_streams

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers to register with a server."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        issued = enrolment_pb2.IssuedCertificate.SerializeToString
        served: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Attend": stream(self.attend, None, _serialised),
            "Renew": unary(self.renew, None, issued),
            "Leave": unary(self.leave, None, fleet_pb2.LeaveReply.SerializeToString),
            "Promoted": unary(self.promoted, None, fleet_pb2.PromotedReply.SerializeToString),
            "Measure": unary(self.measure),
            "Download": grpc.unary_stream_rpc_method_handler(self.download),
            "Upload": stream(self.upload),
        }
        return grpc.method_handlers_generic_handler(methods.FLEET_SERVICE, served)

    async def attend(self, _: object, context: Context) -> None:
        """A client's stream, from its hello to its end."""
        async with self._calls.enter(context) as call:
            await self._attending.serve(call, context)

    async def download(self, raw: bytes, context: Context) -> None:
        """A model's bytes from an offset on."""
        async with self._calls.enter(context) as call:
            request = methods.parse(fleet_pb2.DownloadRequest, raw)
            await self._downloads.serve(call, request, context)

    async def upload(self, _: object, context: Context) -> None:
        """Receive an update: its header, then after `proceed` its body; reply `accepted`."""
        async with self._calls.enter(context) as call:
            await self._uploads.serve(call, context)

    async def renew(self, raw: bytes, context: Context) -> enrolment_pb2.IssuedCertificate:
        """Renew a client's valid certificate."""
        async with self._calls.enter(context) as call:
            client = call.client
            request = methods.parse(enrolment_pb2.RenewRequest, raw)
            if self._authority is None:
                raise Refusal(Code.NO_CERTIFICATE, "A server on plaintext issues no certificates.")
            authority, csr_pem = self._authority, request.csr_pem
            reply = await issuing.renew(self._server, authority, csr_pem, client, "certificate")
            log.info("%s renewed its certificate", client, extra=about(client))
            return reply
        raise AssertionError("aborted")

    async def leave(self, raw: bytes, context: Context) -> fleet_pb2.LeaveReply:
        """Revoke a client's certificates and end its other calls, at its own request."""
        async with self._calls.enter(context) as call:
            methods.parse(fleet_pb2.LeaveRequest, raw)
            server = self._server
            name = call.client
            async with server.audit_log.around(name, "certificate", "client.leave", name, {}):
                await server.in_ledger(server.ledger.leave, name)
            refusal = Refusal(Code.REVOKED, f"The client {call.client!r} has left the federation.")
            for other in server.fleet.calls():
                if other.client == call.client and other is not call:
                    other.end(refusal)
            log.info("%s left the federation", call.client, extra=about(call.client))
            return fleet_pb2.LeaveReply()
        raise AssertionError("aborted")

    async def measure(self, raw: bytes, context: Context) -> bytes:
        """Answer a client's measurement of its connection with the server's time and bytes.

        An answer is no longer than a chunk of a model, whatever was requested.
        """
        async with self._calls.enter(context):
            head, longest = methods.MEASURE_HEAD, methods.CHUNK_BYTES
            if len(raw) < head.size:
                message = f"Expected at least {head.size} bytes, got {len(raw)}."
                raise Refusal(Code.MALFORMED, message)
            (wanted,) = head.unpack_from(raw)
            if wanted > longest:
                message = f"Expected to send back at most {longest} bytes, got {wanted}."
                raise Refusal(Code.TOO_LARGE, message)
            return methods.MEASURE_REPLY.pack(time.time()) + bytes(wanted)
        raise AssertionError("aborted")

    async def promoted(self, raw: bytes, context: Context) -> fleet_pb2.PromotedReply:
        """The signed statement of the promoted model."""
        async with self._calls.enter(context):
            request = methods.parse(fleet_pb2.PromotedRequest, raw)
            return await promoted(self._server, request.run)
        raise AssertionError("aborted")


def _serialised(message: fleet_pb2.ServerMessage | bytes) -> bytes:
    """What is sent on a stream: messages, and models as they are."""
    return message if isinstance(message, bytes) else message.SerializeToString()
