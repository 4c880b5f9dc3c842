"""Accepts the connections of a listener at a bounded rate, in total and per address.

A connection costs a peer little, and time of the event loop that also serves the fleet: a stranger
that asked the console for a page and hung up, again and again, made rounds 1.7 times as long. So
connections beyond the total rate wait in the kernel, where they cost nothing. Those of one address
beyond its own rate are accepted and wait unread; beyond a second of waiting they are closed, late.

No setting of asyncio or uvicorn does this: asyncio accepts up to `backlog` connections in one step
of the event loop, and has no rate.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from fedloom.server.access.throttle import network_of
from fedloom.server.access.token_buckets import Buckets, Waiting

log = logging.getLogger(__name__)

ALL = 128, 100.0
"""Connections at once, and per second after that."""

OF_NETWORK = 32, 50.0
"""The same for one address. Loopback is one too: a reverse proxy keeps its connections open."""

NO_FILES_S = 1.0
"""Pause after the process ran out of files or memory for a connection."""


class PacedListener:
    """Accepts connections from now on.

    Args:
        listener: listening and not blocking; it stays open.
        make: makes the protocol of a connection.
    """

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._all = Buckets(*ALL)
        self._networks = Buckets(*OF_NETWORK)
        self._waiting = Waiting()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more; connections that were not read yet are closed."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no accepted connection waits."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _stop_for(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self._listen)

    def _accept(self) -> None:
        """Accept one connection, if there is a token for it."""
        now = self._loop.time()
        if (wait_s := self._all.wait_s("", now)) > 0:
            self._stop_for(wait_s)
            return
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("the console accepts no connection: %s", error)
            self._stop_for(NO_FILES_S)
            return
        self._all.take("", now)
        wait_s = self._networks.take(network_of(address[0]), now)
        task = self._loop.create_task(self._admit(connection, wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: socket.socket, wait_s: float) -> None:
        try:
            if not await self._waiting.passes(wait_s):
                connection.close()
                return
        except asyncio.CancelledError:
            connection.close()
            raise
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:  # the peer's
            connection.close()
