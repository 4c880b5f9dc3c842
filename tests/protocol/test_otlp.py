"""An unreachable collector costs its spans and a few log lines."""

import logging
import random

import pytest

pytest.importorskip("opentelemetry.sdk")

from fedloom.protocol import otlp
from fedloom.protocol.otlp import OTLPSpanExporter, OtlpTracer
from support.ports import steady_port


@pytest.fixture
def tracer(exporters_end):
    """A tracer whose collector is unreachable."""
    made = OtlpTracer(f"http://127.0.0.1:{steady_port()}", "fedloom-server", "")
    yield made
    made.close()


@pytest.mark.long
def test_unreachable_collector_does_not_fill_the_log(caplog, monkeypatch, request):
    """The exporter logs every failure."""
    monkeypatch.setattr(otlp, "EXPORT_MS", 10)
    with caplog.at_level(logging.INFO):
        tracer = request.getfixturevalue("tracer")
        for _ in range(20):
            with tracer.span("round"):
                pass
            logging.getLogger(OTLPSpanExporter.__module__).error("Failed to export")
        tracer.close()
    names = [record.name for record in caplog.records]
    assert names.count(OTLPSpanExporter.__module__) <= 1


@pytest.mark.long
def test_programs_with_equal_seeds_have_different_traces(tracer):
    """Span ids do not use the generator that training code seeds."""
    made = set()
    for _ in range(2):
        random.seed(7)
        before = random.getstate()
        with tracer.span("round") as span:
            made.add(span.traceparent)
        assert random.getstate() == before
    assert len(made) == 2
