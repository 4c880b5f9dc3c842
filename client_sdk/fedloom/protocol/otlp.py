"""OpenTelemetry spans, exported by OTLP over HTTP; imported only if an endpoint is set.

OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE and OTEL_RESOURCE_ATTRIBUTES of the environment apply.
"""

import logging
import threading
import time
from contextlib import AbstractContextManager
from random import SystemRandom
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fedloom.protocol.errors import Refusal
from fedloom.protocol.tracing import KEY, Span, Tracer, Value, current, under
from fedloom.protocol.version import __version__

EXPORT_MS = 1000
TIMEOUT_S = 5.0
TOLD_S = 60.0
"""Seconds between two log lines about an unreachable collector."""

PARTING_S = 2.0
"""How long a process that ends waits for the export of its last spans."""

_PROPAGATOR = TraceContextTextMapPropagator()
_RANDOM = SystemRandom()


class _Ids(IdGenerator):
    """Identifiers from the system's random source, not from the generator that training code seeds.

    Devices with the same seed would give different rounds the same trace.
    """

    def generate_span_id(self) -> int:
        return _RANDOM.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        return _RANDOM.randrange(1, 1 << 128)

    def is_trace_id_random(self) -> bool:
        return True


class _Seldom(logging.Filter):
    """Limits the rate of log lines: the exporter logs one or more for each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, _: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + TOLD_S
        return True


logging.getLogger(OTLPSpanExporter.__module__).addFilter(_Seldom())


class _OtlpSpan(Span):
    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self._entered: AbstractContextManager[None] | None = None
        context = span.get_span_context()
        trace, own, flags = context.trace_id, context.span_id, int(context.trace_flags)
        self.traceparent = f"00-{trace:032x}-{own:016x}-{flags:02x}"

    def set(self, **attributes: Value) -> None:
        for name, value in attributes.items():
            self._span.set_attribute(f"fedloom.{name}", value)

    def end(self, error: str = "") -> None:
        if error:
            self._span.set_status(StatusCode.ERROR, error[:500])
        if self._span.is_recording():
            self._span.end()

    def __enter__(self) -> Self:
        self._entered = under(self.traceparent)
        self._entered.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._entered is not None
        self._entered.__exit__(None, None, None)
        self.end(_word(error))


def _word(error: BaseException | None) -> str:
    """The name of an error; its message may quote a device's data."""
    if error is None:
        return ""
    return error.code.value if isinstance(error, Refusal) else type(error).__name__


class OtlpTracer(Tracer):
    """Makes spans and exports them.

    Args:
        endpoint: URL of a collector.
        service: name of this kind of process.
        name: of this process.
    """

    on = True

    def __init__(self, endpoint: str, service: str, name: str) -> None:
        attributes = {"service.name": service, "service.version": __version__}
        if name:
            attributes["service.instance.id"] = name
        self._provider = TracerProvider(
            resource=Resource.create(attributes), id_generator=_Ids(), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_MS)
        )
        self._tracer = self._provider.get_tracer("fedloom", __version__)

    def span(self, name: str, parent: str = "", /, **attributes: Value) -> Span:
        """As `Tracer.span`."""
        context = _PROPAGATOR.extract({KEY: parent or current()})
        found = self._tracer.start_span(
            name, context, attributes={f"fedloom.{key}": value for key, value in attributes.items()}
        )
        return _OtlpSpan(found)

    def close(self) -> None:
        """As `Tracer.close`; does not wait for an unreachable collector."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(PARTING_S)
