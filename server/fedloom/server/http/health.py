"""What a balancer asks: whether this server lives, and whether it serves devices.

Plain HTTP without data, for a port that is only reached from inside: GET /live, GET /ready.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fedloom.protocol.errors import UnavailableError
from fedloom.server.config import split_address
from fedloom.server.http.slow_connections import PatientProtocol
from fedloom.server.http.unix_socket import BACKLOG, http_settings, run_until_cancelled

PATHS = ("/live", "/ready")


class Readiness:
    """The state of this server, as an ASGI app.

    Attributes:
        is_ready: whether it serves devices.
    """

    def __init__(self) -> None:
        self.is_ready = False

    def stop(self) -> None:
        """Serve no longer: a balancer sends devices elsewhere."""
        self.is_ready = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        status, text = 200, "ready\n" if self.is_ready else "not ready\n"
        if scope["path"] not in PATHS or scope["method"] not in ("GET", "HEAD"):
            status, text = 404, f"Expected GET of {' or '.join(PATHS)}.\n"
        elif scope["path"] == "/ready" and not self.is_ready:
            status = 503
        await PlainTextResponse(text, status)(scope, receive, send)


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Listen on a port; connections wait until `serve`.

    Raises:
        UnavailableError: it cannot listen there.
    """
    try:
        listener = socket.create_server(split_address(address, "health"), backlog=BACKLOG)
    except OSError as error:
        raise UnavailableError(
            f"The server cannot listen on {address} for `health`: {error.strerror}."
        ) from error
    with listener:
        listener.setblocking(False)
        yield listener


async def serve(readiness: Readiness, listener: socket.socket) -> None:
    """Answer until cancelled."""
    await run_until_cancelled(http_settings(readiness, PatientProtocol), listener)
