"""The spans of a round: each ends once, for any behaviour of its clients."""

from types import SimpleNamespace

from fedloom.protocol.tracing import Span, Tracer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind
from fedloom.server.rounds.trace import RoundTrace

PLAN = SimpleNamespace(run="run", number=1, kind=RoundKind.TRAIN)


class Noted(Span):
    """A span that records how it ended."""

    def __init__(self, name, parent):
        self.name, self.parent, self.ends = name, parent, []
        self.traceparent = f"under {name}"

    def end(self, error=""):
        self.ends.append(error)


class Noting(Tracer):
    """Keeps every started span."""

    on = True

    def __init__(self):
        self.spans = []

    def span(self, name, parent="", /, **attributes):
        self.spans.append(Noted(name, parent))
        return self.spans[-1]


def test_an_offer_ends_with_its_answer_its_repeat_or_the_round():
    """Every span ends, with a reason."""
    tracer = Noting()
    trace = RoundTrace(tracer)
    trace.begin(PLAN)
    offers = [fleet_pb2.ServerMessage() for _ in range(4)]
    for client, offer in zip(("oak", "elm", "elm", "ash"), offers, strict=True):
        trace.offered(client, offer)
    trace.answered("oak")
    trace.answered("oak", "twice")
    trace.answered("ash", "declined")
    trace.end()
    whole, *made = tracer.spans
    assert [span.parent for span in made] == [whole.traceparent] * 4
    assert [offer.traceparent for offer in offers] == [span.traceparent for span in made]
    assert [span.ends for span in made] == [[""], ["offered again"], ["no answer"], ["declined"]]
    assert whole.ends == [""]


def test_a_buffer_ends_the_span_of_the_previous_one():
    """Without the end of a round between them."""
    tracer = Noting()
    trace = RoundTrace(tracer)
    trace.begin(PLAN)
    trace.begin(PLAN)
    assert [span.ends for span in tracer.spans] == [[""], []]
