"""OpenTelemetry spans of a round, from offer to commit, across server and clients.

The tree of a round: round → offer → task → download, train, upload → accept → fold, and round →
commit. The parent of a span is sent as a traceparent (W3C Trace Context, section 3.2): beside the
offer, and in the metadata of an upload. Within a process, and in asyncio tasks, the entered span is
the parent of new spans.

Invariants: without an endpoint OpenTelemetry is not imported, and a span costs one call; an
unreachable collector loses spans and never disturbs a round.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Self
from urllib.parse import urlsplit

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting

KEY = "traceparent"
"""Of metadata."""

Value = str | int | float | bool

_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_current: ContextVar[str] = ContextVar("_current", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """The settings of `[tracing]`."""

    endpoint: str = setting(
        "",
        doc="URL of a collector that takes OTLP over HTTP; empty: no traces",
        example="http://localhost:4318",
    )

    def __post_init__(self) -> None:
        check_endpoint(self.endpoint)


class Span:
    """A span that is not exported.

    Attributes:
        traceparent: for spans under it; empty for none.
    """

    traceparent = ""

    def set(self, **attributes: Value) -> None:
        """Say more about it."""

    def end(self, error: str = "") -> None:
        """End the span; a repeat changes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return None


NO_SPAN = Span()


class Tracer:
    """Makes spans that are not exported.

    Attributes:
        on: whether spans are exported.
    """

    on = False

    def span(self, name: str, parent: str = "", /, **attributes: Value) -> Span:  # noqa: ARG002
        """Begin a span.

        Args:
            name: of the span.
            parent: the traceparent above it; empty for the entered span, if any.
            attributes: of the span.
        """
        return NO_SPAN

    def close(self) -> None:
        """Export the remaining spans, within a short time."""


def tracer(endpoint: str, service: str, name: str = "") -> Tracer:
    """A tracer that exports to an endpoint by OTLP over HTTP, or one that does nothing.

    Args:
        endpoint: URL of a collector, as http://localhost:4318; empty for none.
        service: `fedloom-server` or `fedloom-client`.
        name: of this process among others of the service.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """
    if not endpoint:
        return Tracer()
    try:
        exporting = import_module("fedloom.protocol.otlp")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Expected OpenTelemetry for the endpoint in [tracing], got none ({error.name} is "
            "missing): pip install 'fedloom[otel]', or remove the endpoint."
        ) from error
    made: Tracer = exporting.OtlpTracer(endpoint, service, name)
    return made


def check_endpoint(endpoint: str) -> None:
    """Check an endpoint.

    Raises:
        UsageError: it is no HTTP URL.
    """
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UsageError(
            f"Expected the endpoint of [tracing] as http://HOST:4318, got {endpoint!r}."
        )


def current() -> str:
    """The traceparent of the entered span; empty for none."""
    return _current.get()


@contextmanager
def under(traceparent: str) -> Iterator[None]:
    """Make this span the parent of spans that begin in the context, and in tasks made in it."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


def checked(traceparent: object, within: str = "") -> str:
    """A traceparent from a peer, or an empty text if it is not valid.

    Args:
        traceparent: as received.
        within: a traceparent of the only trace to accept; empty for any.

    >>> checked("00-" + "1" * 32 + "-" + "2" * 16 + "-01")[:6], checked("nonsense")
    ('00-111', '')
    """
    if not isinstance(traceparent, str) or not _FORM.fullmatch(traceparent):
        return ""
    return traceparent if not within or traceparent[3:35] == within[3:35] else ""


def metadata() -> tuple[tuple[str, str], ...]:
    """Metadata that makes the entered span the parent of spans on the other side of a call."""
    traceparent = current()
    return ((KEY, traceparent),) if traceparent else ()
