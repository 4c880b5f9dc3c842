"""Limits on TLS handshakes in progress, in total and per address.

A handshake that does not end costs the server a file descriptor and memory, so a connection beyond
a limit is closed before its handshake. How many begin per second is limited before, when they are
accepted (`paced_listener`).

No setting of uvicorn does this: it passes a TLS context to asyncio, whose handshake may take a
minute, and it counts a connection only after its handshake (uvicorn 0.49).

Source: RFC 9325, section 7.6, names the attack.
"""

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedloom.server.access.throttle import network_of
from fedloom.server.http.proxy_header import Address

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
"""Longest duration of a handshake."""

MAX_PENDING, MAX_PENDING_OF_NETWORK = 256, 64
"""Handshakes in progress."""

LOCAL = ("127.0.0.1", "::/64")
"""Addresses that only the total limits, as a reverse proxy may be there."""


class Handshakes:
    """Makes the protocol of each connection under TLS; `make` makes what runs over it."""

    def __init__(
        self, context: ssl.SSLContext, make: Callable[[Address], asyncio.Protocol]
    ) -> None:
        self._context = context
        self._make = make
        self._pending: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._said_at = 0.0

    def __call__(self, caller: Address) -> asyncio.Protocol:
        """A protocol for one more connection."""
        return _Arrival(self, caller)

    def begin(self, transport: asyncio.Transport, caller: Address) -> None:
        """Begin a handshake, or close the connection."""
        network = network_of(caller[0])
        if not self._has_room(network):
            transport.abort()
            self._say(network)
            return
        self._pending[network] += 1
        task = asyncio.ensure_future(self._shake(transport, caller, network))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _has_room(self, network: str) -> bool:
        of_network = self._pending[network] if network not in LOCAL else 0
        return len(self._tasks) < MAX_PENDING and of_network < MAX_PENDING_OF_NETWORK

    def _say(self, network: str) -> None:
        now = time.monotonic()
        if not self._said_at or now - self._said_at > 60.0:
            self._said_at = now
            log.warning("too many TLS connections to the console, closed; latest from %s", network)

    async def _shake(self, transport: asyncio.Transport, caller: Address, network: str) -> None:
        inner, loop = _Inner(), asyncio.get_running_loop()
        try:
            with suppress(OSError):  # includes ssl.SSLError; the peer's error
                secured = await loop.start_tls(
                    transport, inner, self._context,
                    server_side=True, ssl_handshake_timeout=HANDSHAKE_S,
                )  # fmt: skip
                if secured is not None:
                    inner.hand_over(secured, self._make(caller))
        finally:
            self._pending[network] -= 1
            if not self._pending[network]:
                del self._pending[network]


class _Arrival(asyncio.Protocol):
    """A connection before its handshake: nothing of it is read."""

    def __init__(self, handshakes: Handshakes, caller: Address) -> None:
        self._handshakes = handshakes
        self._caller = caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._handshakes.begin(transport, self._caller)


class _Inner(asyncio.Protocol):
    """Keeps data that arrives right after a handshake, until the next protocol takes over."""

    def __init__(self) -> None:
        self._early: list[bytes] = []
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        """Keep the data."""
        self._early.append(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - not reported
        """Remember that the connection is lost."""
        self._is_lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: Any) -> None:
        """Pass the connection and the kept data to a protocol."""
        if self._is_lost:
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._early:
            if not transport.is_closing():
                protocol.data_received(data)
