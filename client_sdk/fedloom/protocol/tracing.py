"""OpenTelemetry spans of a round, from offer to commit, over server and clients.

The tree of a round: round → offer → task → download, train, upload → accept → fold, and round →
commit. The parent of a span is sent as a traceparent (W3C Trace Context, section 3.2): beside the
offer, and in the metadata of an upload. Within a process the span that is entered is the parent of
those that begin in it, in its tasks as well.

Invariants: without an endpoint nothing of OpenTelemetry is imported, and a span costs a call; a
collector that is away costs spans, never a round.
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
        """Check the URL."""
        check_endpoint(self.endpoint)


class Span:
    """A span that is not exported.

    Attributes:
        traceparent: what spans under it are given; empty for nothing.
    """

    traceparent = ""

    def set(self, **attributes: Value) -> None:
        """Say more about it."""

    def end(self, error: str = "") -> None:
        """It is over; a second time changes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return None


NO_SPAN = Span()


class Tracer:
    """Makes spans; this one makes none.

    Attributes:
        on: whether spans are exported.
    """

    on = False

    def span(self, name: str, parent: str = "", /, **attributes: Value) -> Span:  # noqa: ARG002
        """Begin a span.

        Args:
            name: what happens.
            parent: the traceparent above it; empty for the span that is entered here, if any.
            attributes: more about it.
        """
        return NO_SPAN

    def close(self) -> None:
        """Send what is left, for as long as a moment."""


def tracer(endpoint: str, service: str, name: str = "") -> Tracer:
    """A tracer that exports to an endpoint by OTLP over HTTP, or one that does nothing.

    Args:
        endpoint: URL of a collector, as http://localhost:4318; empty for none.
        service: `fedloom-server` or `fedloom-client`.
        name: of this one among its like.

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
    """May this be one?

    Raises:
        UsageError: it is no URL of HTTP.
    """
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UsageError(
            f"Expected the endpoint of [tracing] as http://HOST:4318, got {endpoint!r}."
        )


def current() -> str:
    """The traceparent of the span that is entered here; empty for none."""
    return _current.get()


@contextmanager
def under(traceparent: str) -> Iterator[None]:
    """Have spans that begin in here, and in tasks made in here, be under this one."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


def checked(traceparent: object, within: str = "") -> str:
    """A traceparent from a peer, or an empty text where it is not valid.

    Args:
        traceparent: what came.
        within: a traceparent of the only trace that it may be of; empty for any.

    >>> checked("00-" + "1" * 32 + "-" + "2" * 16 + "-01")[:6], checked("nonsense")
    ('00-111', '')
    """
    if not isinstance(traceparent, str) or not _FORM.fullmatch(traceparent):
        return ""
    return traceparent if not within or traceparent[3:35] == within[3:35] else ""


def metadata() -> tuple[tuple[str, str], ...]:
    """What a call carries to have its other side be under the span that is entered here."""
    traceparent = current()
    return ((KEY, traceparent),) if traceparent else ()
