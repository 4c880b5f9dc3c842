"""The spans of a round: its own, and one of each offer until it is answered."""

from fedloom.protocol.tracing import NO_SPAN, Span, Tracer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning.round_plan import RoundPlan


class RoundTrace:
    """What a round tells a tracer.

    Args:
        tracer: to tell; it may be off.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._span = NO_SPAN
        self._offers: dict[str, Span] = {}  # not answered yet

    @property
    def parent(self) -> str:
        """What other spans of the round are under; empty where nobody traces."""
        return self._span.traceparent

    def begin(self, plan: RoundPlan) -> None:
        """A round is open; the span of a buffer before it ends."""
        self._span.end()
        kind = plan.kind.value
        self._span = self._tracer.span("round", run=plan.run, round=plan.number, kind=kind)

    def offered(self, client: str, offer: fleet_pb2.ServerMessage) -> None:
        """An offer is about to be sent; the client's spans will be under its own."""
        if self._tracer.on:
            self.answered(client, "offered again")
            span = self._tracer.span("offer", self.parent, client=client)
            self._offers[client], offer.traceparent = span, span.traceparent

    def answered(self, client: str, error: str = "") -> None:
        """A client took its offer, or says why not."""
        if (span := self._offers.pop(client, None)) is not None:
            span.end(error)

    def commit(self) -> Span:
        """The span of making and storing the model."""
        return self._tracer.span("commit", self.parent)

    def end(self, error: str = "", **told: str) -> None:
        """The round is over, or left as it is."""
        self._span.set(**told)
        for client in list(self._offers):
            self.answered(client, "no answer")
        self._span.end(error)
