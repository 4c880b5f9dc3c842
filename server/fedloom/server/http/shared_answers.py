"""Answers that are made once for everybody who asks for the same at the same time.

A change sends every page that shows it for its part anew: ten pages ask within milliseconds. A part
depends on its address and on what its reader may do, and is good until the hub hears of a change
of what the part shows, so the others get what was made for the first.

Invariants: nothing of a reader's own is in a shared answer (no name, no token); whoever asks has
proved who they are, and has the scope of the one whom the answer was made for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.routing import APIRoute

from fedloom.server.access.scopes import principal_of
from fedloom.server.queries.context import ConsoleContext

KEPT_S = 5.0
"""Longest that an answer is given out: what it says of the clock goes on in the browser."""

MAX_KEPT = 64

HEARS = {
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
}
"""By route, the topics whose changes its answers show, as the block `hears` of its template; every
change counts for routes that are not here."""

Key = tuple[str, str, int]
Answer = tuple[int, bytes, str]
"""Status, body and media type."""


class Answers:
    """The latest answers."""

    def __init__(self) -> None:
        self._made: dict[Key, tuple[float, asyncio.Future[Answer]]] = {}

    def forget(self) -> None:
        """Make every answer anew."""
        self._made.clear()

    async def get(self, key: Key, make: Callable[[], Awaitable[Response]]) -> Answer:
        """An answer, made by the first who asks for it.

        Args:
            key: address, scope and the version of what it shows.
            make: how to.
        """
        now = time.monotonic()
        known = self._made.get(key)
        if known is None or now - known[0] >= KEPT_S:
            self._made = {
                k: v for k, v in self._made.items() if k[:2] != key[:2] and now - v[0] < KEPT_S
            }
            if len(self._made) >= MAX_KEPT:  # somebody asks for all sorts of addresses
                return await _bytes(make)
            known = self._made[key] = (now, asyncio.ensure_future(_bytes(make)))
        return await asyncio.shield(known[1])  # others wait for it too


async def _bytes(make: Callable[[], Awaitable[Response]]) -> Answer:
    answer = await make()
    return answer.status_code, bytes(answer.body), answer.headers.get("content-type", "")


class Shared(APIRoute):
    """A route whose answers are shared."""

    def is_shared(self, request: Request) -> bool:
        """Is this request one of them?"""
        return request.method == "GET"

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The handler, making each answer once."""
        original = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if not self.is_shared(request):
                return await original(request)
            who = await principal_of(request)
            context: ConsoleContext = request.app.state.context
            answers: Answers = request.app.state.answers
            url = f"{request.url.path}?{request.url.query}"
            live = context.live
            heard = HEARS.get(self.path, "").format_map(request.path_params).split()
            key = (url, str(who.scope), live.version_of(heard) if heard else live.version)
            status, body, kind = await answers.get(key, lambda: original(request))
            return Response(body, status, {"content-type": kind, "cache-control": "no-store"})

        return handle


class LivePart(Shared):
    """A page whose live part is shared."""

    def is_shared(self, request: Request) -> bool:
        """Is this request one for the live part?"""
        return request.method == "GET" and request.query_params.get("part") == "live"
