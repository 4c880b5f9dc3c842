"""HEAD, answered as GET is but for the body: load balancers and `curl -I` ask by it.

Routes see a GET, so who may ask, what it costs and every header are a GET's; a route that does more
than look finds `HEAD_ONLY` in the request's scope.

Source: RFC 9110, 9.3.2.

Invariant: the answer is over with its head, so nothing waits for a stream without end.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD_ONLY = "fedloom.head_only"
"""Key in a request's ASGI scope: it was HEAD."""


class HeadOnly:
    """Middleware around the routes.

    Args:
        app: what answers GET.
    """

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
                # To a stream of events this is a reader who has gone.
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app({**scope, "method": "GET", HEAD_ONLY: True}, receive, send_head)
