"""Live parts of pages, drawn once for everybody who asks for the same at the same time.

A change sends every page that shows it for its part anew: ten pages ask within milliseconds. A part
depends on its address and on what its reader may do, and is good until the hub hears of another
change, so the others get what was drawn for the first.

Invariants: nothing of a reader's own is in a live part (no name, no token); whoever asks has proved
who they are, and has the scope of the one whom the part was drawn for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.routing import APIRoute

from fedloom.server.routes.parts import Parts
from fedloom.server.routes.scopes import principal_of

KEPT_S = 2.0
"""Longest that a part is given out: what it says of the clock goes on in the browser."""

Key = tuple[str, str, int]


class Drawn:
    """The parts of one version of the hub."""

    def __init__(self) -> None:
        self._parts: dict[Key, tuple[float, asyncio.Future[tuple[int, bytes]]]] = {}

    async def get(self, key: Key, draw: Callable[[], Awaitable[Response]]) -> tuple[int, bytes]:
        """The status and text of a part, drawn by the first who asks for it.

        Args:
            key: address, scope and the hub's version.
            draw: how to.
        """
        now = time.monotonic()
        known = self._parts.get(key)
        if known is not None and now - known[0] < KEPT_S:
            return await asyncio.shield(known[1])
        self._parts = {k: v for k, v in self._parts.items() if k[2] == key[2]}
        future = asyncio.ensure_future(_text(draw))
        self._parts[key] = (now, future)
        return await asyncio.shield(future)


async def _text(draw: Callable[[], Awaitable[Response]]) -> tuple[int, bytes]:
    answer = await draw()
    return answer.status_code, bytes(answer.body)


class LivePart(APIRoute):
    """A route of a page whose live part is shared."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The handler, with parts that are drawn once."""
        original = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.method != "GET" or request.query_params.get("part") != "live":
                return await original(request)
            who = await principal_of(request)
            here: Parts = request.app.state.parts
            drawn: Drawn = request.app.state.drawn
            key = (
                f"{request.url.path}?{request.url.query}",
                str(who.scope),
                here.world.live.version,
            )
            status, text = await drawn.get(key, lambda: original(request))
            return Response(text, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")

        return handle
