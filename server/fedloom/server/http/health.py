"""What a balancer asks: whether this server lives, and whether it serves devices.

Plain HTTP without data, for a port that is only reached from inside: GET /live; GET /ready, which
is for all ports of the server that drives; GET /fleet, for devices, also of a gate; and GET
/metrics, for which replica drives, and for what a gate measures: the console's metrics are those of
the driver alone.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from fedloom.protocol.errors import UnavailableError
from fedloom.server.config import split_address
from fedloom.server.http.slow_connections import PatientProtocol
from fedloom.server.http.unix_socket import BACKLOG, http_settings, run_until_cancelled
from fedloom.server.metrics import scrape
from fedloom.server.metrics.replica import ReplicaState

PATHS = ("/live", "/ready", "/fleet", "/metrics")


class Readiness:
    """The state of this server, as an ASGI app.

    Attributes:
        is_ready: whether it drives, and serves devices and operators.
        is_gate: whether a gate in this process serves devices, whoever drives.
        replica: who drives; None for a server alone.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.is_gate = False
        self.replica: ReplicaState | None = None

    def stop(self) -> None:
        """Serve no longer: a balancer sends devices elsewhere."""
        self.is_ready = self.is_gate = False

    def serve_as_gate(self, serves: bool) -> None:
        """Serve devices as a gate, or no longer."""
        self.is_gate = serves

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path"]
        ready = path == "/live" or self.is_ready or (path == "/fleet" and self.is_gate)
        status, text = (200, "ready\n") if ready else (503, "not ready\n")
        if path not in PATHS or scope["method"] not in ("GET", "HEAD"):
            status, text = 404, f"Expected GET of {', '.join(PATHS)}.\n"
        elif path == "/metrics":
            await self._metrics(scope, receive, send)
            return
        await PlainTextResponse(text, status)(scope, receive, send)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = b"", "text/plain"
        if self.replica is not None:
            accept = Headers(scope=scope).get("accept", "")
            found = scrape.text(scrape.ReplicaScrape(self.replica), accept)
        await Response(found[0], headers={"content-type": found[1]})(scope, receive, send)


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
