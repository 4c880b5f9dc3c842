"""What a collector that is away costs: its spans, and a line of the log now and then."""

import logging

import pytest

pytest.importorskip("opentelemetry.sdk")

from fedloom.protocol import otlp
from fedloom.protocol.otlp import OTLPSpanExporter, OtlpTracer
from support.ports import steady_port


def test_collector_that_is_away_does_not_fill_the_log(caplog, monkeypatch):
    """An exporter says each time that it failed; an operator has other lines to read."""
    monkeypatch.setattr(otlp, "EXPORT_MS", 10)
    with caplog.at_level(logging.INFO):
        tracer = OtlpTracer(f"http://127.0.0.1:{steady_port()}", "fedloom-server", "")
        for _ in range(20):
            with tracer.span("round"):
                pass
            logging.getLogger(OTLPSpanExporter.__module__).error("Failed to export")
        tracer.close()
    names = [record.name for record in caplog.records]
    assert names.count(OTLPSpanExporter.__module__) <= 1
