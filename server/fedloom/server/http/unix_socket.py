"""Serves the API on a Unix socket in the state directory.

Any user who can open the socket is an administrator, so it is created with mode 0600. A lock file
beside it shows that a server is running. The kernel releases the lock when the process ends, so
the socket of a killed server is replaced, and that of a running one never is.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import pwd
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedloom.protocol.errors import UnavailableError
from fedloom.protocol.transport import local_socket
from fedloom.server.access.principal import LOCAL_USER
from fedloom.server.config import Networks
from fedloom.server.http.handshake_limits import Handshakes
from fedloom.server.http.paced_listener import PacedListener
from fedloom.server.http.proxy_header import Address

log = logging.getLogger(__name__)

BACKLOG = 128
GRACE_S = 2
"""Seconds that requests have to finish when the server stops."""
TICK_S = 1.0
"""Interval at which the date in answers is updated."""


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[socket.socket]:
    """Listen on the socket at `path`; connections wait in its queue until `serve`.

    Raises:
        UnavailableError: another server is running on this state directory.
    """
    with _held(path) as listener:
        yield listener


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until cancelled; requests in progress get `GRACE_S` seconds to end."""
    await run_until_cancelled(http_settings(app, _SocketProtocol), listener)


def http_settings(app: ASGIApp, protocol: type[asyncio.Protocol]) -> uvicorn.Config:
    """Settings of a listener that sends no server header and trusts no proxy's headers."""
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
    )


async def run_until_cancelled(
    config: uvicorn.Config, listener: socket.socket, proxies: Networks = ()
) -> None:
    """Serve one listener until cancelled; `proxies` are as in `PacedListener`."""
    server = _Quiet(config, proxies)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.end()
        await serving


class _Calm(logging.LoggerAdapter[logging.Logger]):
    """A logger with warnings at DEBUG: uvicorn's are all about input of unauthenticated peers."""

    level = logging.INFO  # read by uvicorn

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log at DEBUG."""
        self.debug(msg, *args, **kwargs)


class HttpProtocol(H11Protocol):
    """HTTP that logs no requests, as their URLs may hold secrets.

    Args:
        caller: address of who connects over TCP.
    """

    def __init__(self, *args: Any, caller: Address | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._caller = caller
        self.access_log = False  # a later logging setup would undo uvicorn's setting
        self.logger = _Calm(self.logger)  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the caller's address from where it was decided, not from the connection."""
        super().connection_made(transport)
        self.client = self._caller


class _SocketProtocol(HttpProtocol):
    """HTTP from a caller whose name comes from the kernel."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Put the caller's name into every request of the connection."""
        super().connection_made(transport)
        user, app = _caller(transport.get_extra_info("socket")), self.app

        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, LOCAL_USER: user}, receive, send)

        self.app: ASGIApp = named


def _caller(connection: socket.socket) -> str:
    """The name of the user at the other end of a Unix socket."""
    user_id = os.getuid()  # by the socket's mode, if the kernel does not report it
    if hasattr(socket, "SO_PEERCRED"):
        credentials = struct.Struct("3i")  # process, user, group: unix(7)
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
        user_id = credentials.unpack(found)[1]
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:  # containers run under ids without a name
        return f"uid {user_id}"


class _Quiet(uvicorn.Server):
    """A uvicorn server that handles no signals and limits TLS handshakes.

    It opens its listeners itself: uvicorn does not limit handshakes, so each silent connection
    would hold a file descriptor for a minute. It looks once a second whether it has to end, and is
    told when: uvicorn looks ten times, which is most of what an idle server does.
    """

    def __init__(self, config: uvicorn.Config, proxies: Networks) -> None:
        super().__init__(config)
        self._proxies = proxies
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stop serving, soon."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Update the date in answers each second until the end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets."""
        config, self.servers = self.config, []

        def protocol(caller: Address | None) -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state={}, caller=caller
            )
            return made

        made = Handshakes(config.ssl, protocol) if config.ssl else protocol
        for listener in sockets or ():
            self.servers.append(await _accepting(listener, made, self._proxies))
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _accepting(
    listener: socket.socket, make: Callable[..., asyncio.Protocol], proxies: Networks
) -> asyncio.base_events.Server:
    if listener.family is not socket.AF_UNIX:
        # uvicorn only closes it, and waits until it is closed.
        return PacedListener(listener, make, proxies)  # type: ignore[return-value]
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: make(None), sock=listener, backlog=BACKLOG)


@contextmanager
def _held(path: Path) -> Iterator[socket.socket]:
    with locked(path):
        path.unlink(missing_ok=True)
        with _bound(path) as listener:
            try:
                yield listener
            finally:
                path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside a socket, so that no server starts.

    Raises:
        UnavailableError: a server is running on this state directory.
    """
    path = path.with_suffix(".lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"Another server is running on {path.parent}: stop it first, or choose another "
                "--dir."
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    """A socket that gets its final name once it listens, so that callers can wait for the name."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            with local_socket.address(draft) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        draft.rename(path)
        yield listener
