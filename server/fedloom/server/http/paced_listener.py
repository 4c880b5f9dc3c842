"""Accepts the connections of a listener at a bounded rate, in total and per address.

A connection costs a peer little, and time of the event loop that also serves the fleet: a stranger
that asked the console for a page and hung up, again and again, made rounds 1.7 times as long. So
connections beyond the total rate wait in the kernel, where they cost nothing. Those of one address
beyond its own rate are accepted and wait unread; beyond a second of waiting they are closed, late.

No setting of asyncio or uvicorn does this: asyncio accepts up to `backlog` connections in one step
of the event loop, and has no rate.

Invariant: the address of a caller is decided here, and nowhere else on TCP: the connection's, or
the one in the PROXY header of a trusted proxy. The protocols are made for it.
"""

import asyncio
import ipaddress
import logging
import math
import socket
from collections.abc import Callable

from fedloom.server.access.throttle import network_of
from fedloom.server.access.token_buckets import Buckets, Waiting
from fedloom.server.config import Networks
from fedloom.server.http.proxy_header import Address, ProxyHeaderError, read_caller

log = logging.getLogger(__name__)

ALL = 128, 100.0
"""Connections at once, and per second after that."""

OF_NETWORK = 32, 50.0
"""The same for one address. Loopback is one too: a reverse proxy keeps its connections open."""

SAY_S = 60.0
"""Shortest time between two warnings about proxies."""

NO_FILES_S = 1.0
"""Pause after the process ran out of files or memory for a connection."""


class PacedListener:
    """Accepts connections from now on.

    Args:
        listener: listening and not blocking; it stays open.
        make: makes the protocol of a connection, by the address of its caller.
        proxies: whose connections begin with a PROXY header, in which the caller is.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Address], asyncio.Protocol],
        proxies: Networks = (),
    ) -> None:
        self._listener = listener
        self._make = make
        self._proxies = proxies
        self._said_at = -math.inf
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
        connection.setblocking(False)
        task = self._loop.create_task(self._admit(connection, (str(address[0]), address[1])))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: socket.socket, peer: Address) -> None:
        try:
            caller = await read_caller(connection, peer) if self._is_proxy(peer) else peer
            wait_s = self._networks.take(network_of(caller[0]), self._loop.time())
            if not await self._waiting.passes(wait_s):
                connection.close()
                return
        except ProxyHeaderError as error:
            connection.close()
            self._say(error)
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(caller), connection)
        except OSError:  # the peer's
            connection.close()

    def _is_proxy(self, peer: Address) -> bool:
        if not self._proxies:
            return False
        address = ipaddress.ip_address(peer[0].partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)

    def _say(self, error: ProxyHeaderError) -> None:
        """Log a proxy's mistake, at most once a minute."""
        now = self._loop.time()
        if now - self._said_at > SAY_S:
            self._said_at = now
            log.warning("a connection to the console is closed: %s", error)
