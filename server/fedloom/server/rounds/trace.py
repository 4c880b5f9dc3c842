"""The tracing spans of a round: its own, and one of each offer until it is answered."""

from fedloom.protocol.tracing import NO_SPAN, Span, Tracer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning.round_plan import RoundPlan


class RoundTrace:
    """Records the spans of a round, if the tracer is enabled."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._span = NO_SPAN
        self._offers: dict[str, Span] = {}  # not answered yet

    @property
    def parent(self) -> str:
        """The parent of the round's other spans; empty if tracing is off."""
        return self._span.traceparent

    def begin(self, plan: RoundPlan) -> None:
        """Begin the span of an open round; that of the previous buffer ends."""
        self._span.end()
        kind = plan.kind.value
        self._span = self._tracer.span("round", run=plan.run, round=plan.number, kind=kind)

    def offered(self, client: str, offer: fleet_pb2.ServerMessage) -> None:
        """Begin the span of an offer, the parent of the client's spans."""
        if self._tracer.on:
            self.answered(client, "offered again")
            span = self._tracer.span("offer", self.parent, client=client)
            self._offers[client], offer.traceparent = span, span.traceparent

    def answered(self, client: str, error: str = "") -> None:
        """End an offer's span: accepted, or declined with a reason."""
        if (span := self._offers.pop(client, None)) is not None:
            span.end(error)

    def commit(self) -> Span:
        """The span of computing and storing the model."""
        return self._tracer.span("commit", self.parent)

    def end(self, error: str = "", **attributes: str) -> None:
        """End all spans: the round is over, or the server stops."""
        self._span.set(**attributes)
        for client in list(self._offers):
            self.answered(client, "no answer")
        self._span.end(error)
