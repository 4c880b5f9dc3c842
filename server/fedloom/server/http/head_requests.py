"""Answers HEAD like GET without the body, for load balancers and `curl -I`.

Routes see a GET, so its permissions, limits and headers apply. A route whose GET has an effect
finds `HEAD_ONLY` in the request's scope.

Source: RFC 9110, 9.3.2.

Invariant: the answer ends with its head, even for an endless stream.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD_ONLY = "fedloom.head_only"
"""Key in the ASGI scope of a HEAD request."""


class HeadOnly:
    """Middleware around the routes, which answer GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                # To a stream of events, this is a reader that disconnected.
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app({**scope, "method": "GET", HEAD_ONLY: True}, receive, send_head)
