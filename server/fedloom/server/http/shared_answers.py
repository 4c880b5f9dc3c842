"""Shares one answer among equal requests at the same time.

After a change, every page that shows it requests its live part, ten pages within milliseconds. The
part depends on its URL, the reader's scope and the version of the topics that it shows. So the
answer to the first request serves the others.

Invariants: a shared answer holds nothing of one reader (no name, no token); every reader is
authenticated and has the scope that the answer was made for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.routing import APIRoute

from fedloom.server.access.scopes import principal_of
from fedloom.server.queries.context import ConsoleContext

KEPT_S = 5.0
"""Seconds an answer is shared; the browser updates the times in it."""

MAX_KEPT = 64

TOPICS = {
    "/": "run clients refusals",
    "/runs": "run",
    "/runs/{run}": "run:{run} refusals:{run}",
    "/runs/{run}/rounds": "run:{run}",
    "/runs/{run}/curves": "run:{run}",
    "/curves": "run",
    "/models": "models run",
    "/models/{digest}": "models",
    "/enrolment": "tokens",
    "/audit": "audit",
    "/privacy": "audit",
}
"""Topics that the answers of a route show, as in the block `live_topics` of its template. Other
routes depend on every topic."""

Key = tuple[str, str, int]
Answer = tuple[int, bytes, str]
"""Status, body and media type."""


class Answers:
    """Cache of the latest answers."""

    def __init__(self) -> None:
        self._made: dict[Key, tuple[float, asyncio.Future[Answer]]] = {}

    def forget(self) -> None:
        """Drop all answers."""
        self._made.clear()

    async def get(self, key: Key, make: Callable[[], Awaitable[Response]]) -> Answer:
        """An answer, made for the first request with this URL, scope and version of the topics."""
        now = time.monotonic()
        known = self._made.get(key)
        if known is None or now - known[0] >= KEPT_S:
            self._made = {
                k: v for k, v in self._made.items() if k[:2] != key[:2] and now - v[0] < KEPT_S
            }
            if len(self._made) >= MAX_KEPT:  # too many different URLs
                return await _bytes(make)
            known = self._made[key] = (now, asyncio.ensure_future(_bytes(make)))
        return await asyncio.shield(known[1])  # others wait for it too


async def _bytes(make: Callable[[], Awaitable[Response]]) -> Answer:
    answer = await make()
    return answer.status_code, bytes(answer.body), answer.headers.get("content-type", "")


class Shared(APIRoute):
    """A route whose answers are shared."""

    def is_shared(self, request: Request) -> bool:
        """Whether the answer to this request is shared."""
        return request.method == "GET"

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The handler, which makes each shared answer once."""
        original = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if not self.is_shared(request):
                return await original(request)
            who = await principal_of(request)
            context: ConsoleContext = request.app.state.context
            answers: Answers = request.app.state.answers
            url = f"{request.url.path}?{request.url.query}"
            live = context.live
            topics = TOPICS.get(self.path, "").format_map(request.path_params).split()
            key = (url, who.audience, live.version_of(topics) if topics else live.version)
            status, body, kind = await answers.get(key, lambda: original(request))
            return Response(body, status, {"content-type": kind, "cache-control": "no-store"})

        return handle


class LivePart(Shared):
    """A page whose live part is shared."""

    def is_shared(self, request: Request) -> bool:
        """Whether this request is for the live part; a list's file is not shared."""
        asked = request.query_params
        is_file = any(name.rpartition(".")[2] == "as" for name in asked)
        return request.method == "GET" and asked.get("part") == "live" and not is_file
