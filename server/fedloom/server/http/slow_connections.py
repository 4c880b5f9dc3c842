"""Time limits for slow HTTP connections, and limits on their number, in total and per address.

A socket costs a peer nothing and the server a file descriptor, and the fleet needs one per client.
So a request's head must arrive soon, bodies and answers must make progress, and connections beyond
the limits are closed at once.

No setting of uvicorn does this: `timeout_keep_alive` ends idle connections between requests, and
`limit_concurrency` answers 503 to requests that are complete. It has no time limit for a head or a
body, and none by address (uvicorn 0.49). So this subclasses its HTTP protocol.

Sources: the attack is known as slowloris (R. Hansen, 2009); RFC 9112, section 9.5, on time-outs.
"""

import asyncio
from typing import Any

import h11

from fedloom.server.access.throttle import network_of
from fedloom.server.http.unix_socket import HttpProtocol

HEAD_S = 10.0
"""Longest wait for the head of a request, from when the connection is ready for it."""

STALL_S = 60.0
"""Longest time without progress of a body or of reading an answer."""

LOOK_S = 2.5
"""Interval of the checks of a connection."""

MAX_CONNECTIONS = 512

MAX_OF_NETWORK = 128
"""Connections of one address; loopback, where a reverse proxy may be, is exempt."""

_LOCAL = ("127.0.0.1", "::/64")


class PatientProtocol(HttpProtocol):
    """HTTP that closes connections which make no progress."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looking: asyncio.TimerHandle | None = None
        self._network = ""
        self._since = 0.0
        self._received = 0
        self._seen: tuple[object, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and close it if it is beyond a limit."""
        super().connection_made(transport)
        self._network = network_of(self.client[0]) if self.client else ""
        if len(self.connections) > MAX_CONNECTIONS or self._is_crowd():
            transport.abort()
            return
        self._since = self.loop.time()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes, then parse them."""
        self._received += len(data)
        super().data_received(data)

    def _is_crowd(self) -> bool:
        held = sum(getattr(each, "_network", "") == self._network for each in self.connections)
        return self._network not in _LOCAL and held > MAX_OF_NETWORK

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Close the connection if it made no progress for too long."""
        waiting, now = self._waits_for(), self.loop.time()
        if waiting != self._seen or not waiting:
            self._seen, self._since = waiting, now
        elif now - self._since >= (HEAD_S if waiting[0] == "head" else STALL_S) - LOOK_S:
            self.transport.abort()
            return
        self._look_later()

    def _waits_for(self) -> tuple[object, ...]:
        """What the peer must do next and its progress; empty while the server must act."""
        state = self.conn.their_state
        done = self.cycle is None or self.cycle.response_complete
        if self.flow.write_paused:
            return "read", self.transport.get_write_buffer_size()
        if state is h11.IDLE:  # a head is short: its bytes are no progress
            return ("head", id(self.cycle)) if done else ()
        if state is h11.SEND_BODY and done:  # nor is the rest of a body that was answered
            return "head", id(self.cycle)
        if state is h11.SEND_BODY and not self.flow.read_paused:
            return "body", self._received
        return ()
