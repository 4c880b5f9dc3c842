"""The operator's door: HTTP on a Unix socket in the state directory.

Whoever may open the socket is the operator, so it is made with mode 0600 and is never, at any
instant, wider. A lock beside it says whether a server is alive: the kernel lets go of it however
the server ends, so a socket left by a killed server is replaced and a living server's never is.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from fedloom.protocol import local_socket
from fedloom.protocol.errors import UnavailableError

log = logging.getLogger(__name__)

BACKLOG = 128
GRACE_S = 2
"""Seconds that requests have to finish when the server stops."""


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[socket.socket]:
    """Hold the socket at `path`; callers wait in its queue until `serve` answers them.

    Raises:
        UnavailableError: another server is running on this state directory.
    """
    with _held(path) as listener:
        yield listener


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until cancelled; what has begun gets a moment to end."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Quiet(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves the process's signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _held(path: Path) -> Iterator[socket.socket]:
    with _locked(path.with_suffix(".lock")):
        path.unlink(missing_ok=True)
        with _bound(path) as listener:
            try:
                yield listener
            finally:
                path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"Expected no server on {path.parent}, but another server is running there: "
                "stop it first, or choose another --dir."
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            with local_socket.address(path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener
