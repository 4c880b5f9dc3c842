"""Models that are sent with their offers: small ones, to clients that take them.

This saves a client one call for each task. A client whose offer comes without a model downloads it,
so no result depends on this.

Invariant: the bytes of models that are being sent with offers do not grow with the number of
clients, and a client that does not read holds up no other.
"""

import time
from contextlib import suppress

from google.protobuf.message import DecodeError

from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet.authenticate import Context
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.reporting_rounds import ReportingRounds
from fedloom.server.fleet.transfer_slots import JUDGED_AFTER_S
from fedloom.server.rounds.clients import Send
from fedloom.server.rounds.member_records import Record

IN_FLIGHT_BYTES = 32 << 20
"""Most bytes of models that are being sent with offers; beyond it, offers are sent alone."""


class OfferedModels:
    """Reads the models to send, and limits how many are being sent.

    Args:
        server: its context.
        rounds: that are open; they count what their members are sent.
    """

    def __init__(self, server: FleetContext, rounds: ReportingRounds) -> None:
        self._server = server
        self._rounds = rounds
        self._in_flight = 0
        self._last = ("", b"")

    def sender(self, client: str, context: Context, longest: int) -> Send:
        """Sends the messages of a client's stream, offers with their models where it takes them.

        Args:
            client: whose stream it is.
            context: of the stream.
            longest: the largest model that the client takes, bytes.
        """
        longest = min(longest, methods.OFFERED_MODEL_BYTES)
        sent = ""

        async def send(message: fleet_pb2.ServerMessage) -> None:
            nonlocal longest, sent
            model = _model_of(message)
            fits = 0 < model.size_bytes <= longest and model.digest != sent
            seen = self._rounds.record_of(client, model.digest)[0] if fits else Record()
            has_it = seen.bytes_down > 0  # such as from before it reconnected
            content = self._read(model) if fits and not has_it else b""
            message.model_follows = bool(content)
            if not content:
                await context.write(message)
                return
            sent, begun = model.digest, time.monotonic()
            self._in_flight += len(content)
            try:
                await context.write(message)
                await context.write(content)
            finally:
                self._in_flight -= len(content)
            if time.monotonic() - begun > JUDGED_AFTER_S:
                longest = 0  # its other messages would wait behind models
            seen.given(len(content))
            self._server.meters.sent.inc(len(content))

        return send

    def _read(self, model: fleet_pb2.ModelRef) -> bytes:
        """A model; empty if it is not whole on this disk, or if too much is being sent."""
        if self._in_flight + model.size_bytes > IN_FLIGHT_BYTES:
            return b""
        digest, content = self._last
        if digest != model.digest:
            try:
                content = self._server.models.path(model.digest).read_bytes()
            except OSError:
                return b""
            self._last = (model.digest, content)
        return content if len(content) == model.size_bytes else b""


def _model_of(message: fleet_pb2.ServerMessage) -> fleet_pb2.ModelRef:
    """The model of an offer that has no differences to it; an empty one otherwise."""
    task = message.offer
    with suppress(DecodeError):
        statement = fleet_pb2.OfferStatement.FromString(message.signed_offer.statement)
        task = fleet_pb2.Task.FromString(statement.task) if statement.task else task
    return fleet_pb2.ModelRef() if task.differences else task.model
