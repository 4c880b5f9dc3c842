"""Middleware for requests over TCP: limits on requests, security headers on answers.

Sources: OWASP's Secure Headers Project; W3C Content Security Policy Level 3.

Invariants: pages load scripts and styles only from this server; no other site can frame them; no
long body of an unauthenticated peer is read into memory; a stream of events ends within seconds
after its credential ends.
"""

import asyncio
import logging
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedloom.server.access.errors import TooManyTriesError, UnauthenticatedError
from fedloom.server.access.gate import Gate
from fedloom.server.access.principal import LOCAL_USER, Principal
from fedloom.server.access.request_pace import RequestPace

log = logging.getLogger(__name__)

PRINCIPAL = "fedloom.principal"
"""Key in a request's ASGI scope: its principal, once authenticated."""

STRANGER_BYTES = 16 << 10
"""Longest body of an unauthenticated request, such as a login form."""

DOCUMENT_BYTES = 8 << 20
"""Longest JSON document or form of an authenticated request; models are streamed."""

RECHECK_S = 5.0
"""Interval at which the credential of a stream of events is checked again."""

API = "/v1/"
"""Prefix of paths that always need a credential to change something."""

STREAMED = {("PUT", "/v1/models")}
"""Requests whose bodies are written to disk as they arrive; the route has its own limit."""

SLOWEST_BODY_S = 30.0
"""Longest time that a body of limited length may take, even if it arrives steadily."""

CSP = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with it, browsers send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
HSTS = "max-age=31536000"


class Shield:
    """Middleware around the application; the gate authenticates requests."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate
        self._pace = RequestPace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or LOCAL_USER in scope:
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope["path"], secure=self._gate.site.secure)
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            # RFC 9112, 6.3: request smuggling past a proxy.
            message = "Expected Content-Length or Transfer-Encoding, got both."
            await _fault(400, message, Connection="close")(scope, receive, answer.send)
            return
        if not self._gate.site.knows(headers.get("host", "")):
            message = (
                "Expected a host name of this server. Add it to `names` or set `console_url` in "
                "server.toml."
            )
            await _fault(421, message)(scope, receive, answer.send)
            return
        scope = {**scope}
        try:  # before anything of the request is read
            limit = await self._limit(scope)
        except TooManyTriesError as error:
            await _fault(429, str(error), "denied", **{"Retry-After": error.retry_after})(
                scope, receive, answer.send
            )
            return
        except UnauthenticatedError as error:
            await _fault(401, str(error), "denied", **{"WWW-Authenticate": "Bearer"})(
                scope, receive, answer.send
            )
            return
        declared = headers.get("content-length", "0")
        if limit is not None and declared.isdigit() and int(declared) > limit:
            message = f"Expected a body of at most {limit} bytes."
            await _fault(413, message)(scope, receive, answer.send)
            return
        await self._guarded(scope, receive, answer, limit)

    async def _limit(self, scope: Scope) -> int | None:
        """Longest body allowed for this request, bytes; None for a stream of any length.

        Raises:
            TooManyTriesError: its user or its address makes too many requests.
            UnauthenticatedError: an API request that changes something has no valid credential.
        """
        request, changes = Request(scope), scope["method"] not in ("GET", "HEAD", "OPTIONS")
        try:
            scope[PRINCIPAL] = principal = await self._gate.principal(request)
        except UnauthenticatedError:
            await self._pace.stranger(self._gate.address(request))
            if changes and scope["path"].startswith(API):
                raise
            return STRANGER_BYTES
        except Exception:  # noqa: BLE001 - of the ledger: the application answers, when it asks again
            return STRANGER_BYTES
        await self._pace.user(principal.name)
        if not changes:
            return STRANGER_BYTES
        # By the path, not the headers: other routes read the whole body into memory.
        return None if (scope["method"], scope["path"]) in STREAMED else DOCUMENT_BYTES

    async def _guarded(
        self, scope: Scope, receive: Receive, answer: "_Answer", limit: int | None
    ) -> None:
        watch, body = _Watch(self._gate, scope, answer), _Body(receive, limit)
        try:
            await self._app(scope, body.receive, watch.send)
        except asyncio.CancelledError:
            if not watch.over or watch.answering.uncancel():
                raise
            log.info("a stream of events ended with the session behind it")
            await answer.send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.end()


class _Body:
    """A body that ends when it exceeds its limit of length or time."""

    def __init__(self, receive: Receive, limit: int | None) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0
        self._until: float | None = None
        if limit is not None:
            self._until = asyncio.get_running_loop().time() + SLOWEST_BODY_S

    async def receive(self) -> Message:
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        if not message.get("more_body", False):
            self._until = None  # only a disconnect can follow
        self._size += len(message.get("body", b""))
        over = self._limit is not None and self._size > self._limit
        return {"type": "http.disconnect"} if over else message


class _Answer:
    """An answer with the security headers."""

    def __init__(self, send: Send, path: str, *, secure: bool) -> None:
        self._send = send
        self._secure = secure
        self._is_static = path.startswith(("/static/", "/docs/"))
        self.is_events = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            self.is_events = headers.get("content-type", "").startswith("text/event-stream")
            for name, value in HEADERS.items():
                headers[name] = value
            if self._secure:
                headers["Strict-Transport-Security"] = HSTS
            if not self._is_static:
                headers["Cache-Control"] = "no-store"
        await self._send(message)


class _Watch:
    """Ends a stream of events when its credential is no longer valid.

    It checks on a timer, as a quiet server may send nothing for a long time.
    """

    def __init__(self, gate: Gate, scope: Scope, answer: _Answer) -> None:
        self._gate = gate
        self._scope = scope
        self._answer = answer
        self._looking: asyncio.Task[None] | None = None
        current = asyncio.current_task()
        assert current is not None
        self.answering: asyncio.Task[Any] = current
        self.over = False

    async def send(self, message: Message) -> None:
        await self._answer.send(message)
        if self._answer.is_events and self._looking is None:
            self._looking = asyncio.ensure_future(self._look())

    def end(self) -> None:
        """The answer is over."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            if not await self._is_good():
                self.over = True
                self.answering.cancel()
                return

    async def _is_good(self) -> bool:
        before: Principal | None = self._scope.get(PRINCIPAL)
        try:
            now = await self._gate.principal(Request(self._scope))
        except UnauthenticatedError:
            now = None
        except Exception:  # of the ledger: no stream continues unchecked
            log.exception("a credential could not be checked: its stream of events ends")
            return False
        if before is None or now is None:
            return before is None
        return now.scope.covers(before.scope) and now.studies == before.studies


def _fault(status: int, message: str, kind: str = "usage", **headers: str) -> JSONResponse:
    fault = {"message": message, "kind": kind, "code": None}
    return JSONResponse({"error": fault}, status, headers)
