"""Idle connections leave file descriptors for the rest of the server."""

import asyncio
import resource
import socket
from contextlib import ExitStack, suppress

import pytest

from fedloom.server.http import connection_limits
from support.federation import Federation
from support.patience import PATIENCE_S


def connect(port):
    """A silent connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def test_limit_is_raised_as_far_as_allowed(monkeypatch):
    """If the system refuses, the actual limit is returned."""
    known, given = (1024, 4096), []
    monkeypatch.setattr(resource, "getrlimit", lambda _: known)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert connection_limits.raise_limit() == 4096
    known = (1024, resource.RLIM_INFINITY)
    assert connection_limits.raise_limit() == connection_limits.MOST
    assert given == [(4096, 4096), (connection_limits.MOST, resource.RLIM_INFINITY)]

    def refuse(*_):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connection_limits.raise_limit() == 1024


@pytest.mark.parametrize("files", [256, 1024, 65536, connection_limits.MOST])
def test_connections_leave_file_descriptors_for_other_uses(files):
    fleet, enrolling = connection_limits.places(files)
    assert fleet > enrolling > 0
    assert files - fleet - enrolling >= min(files // 4, connection_limits.RESERVED)


def test_connection_beyond_the_limit_is_closed(tmp_path, monkeypatch):
    """On the fleet and enrolment ports, before the handshake; the others continue."""
    monkeypatch.setattr(connection_limits, "places", lambda _: (3, 2))
    (tmp_path / "server").mkdir()

    async def story():
        federation = await Federation(tmp_path / "server").start()
        try:
            server = federation.server
            for port, places in ((server.fleet_port, 3), (server.enrolment_port, 2)):
                with ExitStack() as stack:
                    opened = [stack.enter_context(connect(port)) for _ in range(places + 1)]
                    with suppress(ConnectionResetError):
                        assert await asyncio.to_thread(opened[-1].recv, 1) == b""
                    for each in opened[:-1]:
                        each.setblocking(False)
                        with pytest.raises(BlockingIOError):
                            each.recv(1)
        finally:
            await federation.stop()

    asyncio.run(story())
