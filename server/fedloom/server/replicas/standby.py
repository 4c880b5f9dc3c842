"""What a server on standby answers on its control socket: that another one drives."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from fedloom.server.http.unix_socket import HttpProtocol, http_settings, run_until_cancelled


class StandbyApp:
    """Answers GET /v1/standby, and every other request with an error, as an ASGI app."""

    def __init__(self) -> None:
        self._driver = "another server"

    def driven_by(self, name: str) -> None:
        """Note the machine that drives."""
        self._driver = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["path"] == "/v1/standby":
            await JSONResponse({"driver": self._driver})(scope, receive, send)
            return
        message = f"This server is on standby: {self._driver} drives. Run the command there."
        error = {"message": message, "kind": "unavailable", "code": ""}
        await JSONResponse({"error": error}, 503)(scope, receive, send)


@asynccontextmanager
async def answering(listener: socket.socket) -> AsyncIterator[StandbyApp]:
    """Answer on a listener, which stays open afterwards."""
    app = StandbyApp()
    with listener.dup() as own:
        serving = asyncio.ensure_future(run_until_cancelled(http_settings(app, HttpProtocol), own))
        try:
            yield app
        finally:
            serving.cancel()
            await asyncio.wait([serving])
