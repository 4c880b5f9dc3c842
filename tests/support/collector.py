"""A collector of traces: OTLP over HTTP, as in the specification, in a thread of the test."""

import gzip
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Seen:
    """A span, as exported."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    begun: int
    ended: int
    attributes: dict
    error: str


class Collector:
    """What came.

    Attributes:
        endpoint: where to export to.
        spans: all of them, in the order in which they came.
    """

    def __init__(self):
        self.spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.spans += read(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def listening(self):
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def of(self, name):
        return [span for span in self.spans if span.name == name]

    def path(self, span):
        """Names from the root to a span; `?` for a missing parent."""
        by_id = {each.id: each for each in self.spans}
        names = [span.name]
        while span.parent:
            if span.parent not in by_id:
                return ["?", *names]
            span = by_id[span.parent]
            names.insert(0, span.name)
        return names


def read(body):
    """The spans of an export request."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return [
        Seen(
            span.name, _plain(group.resource.attributes)["service.name"], span.trace_id.hex(),
            span.span_id.hex(), span.parent_span_id.hex(), span.start_time_unix_nano,
            span.end_time_unix_nano, _plain(span.attributes), span.status.message,
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]  # fmt: skip


def _plain(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
