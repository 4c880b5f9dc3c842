"""Connections beyond a rate wait, in the kernel or unread, and other addresses are served."""

import asyncio
import socket
import time
from contextlib import ExitStack

import pytest

from fedloom.server.access import token_buckets
from fedloom.server.http import paced_listener
from support.door import Door
from support.visitor import PATIENCE_S

ASK = b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def asking(door, address):
    """A connection from an address of loopback that has sent a request."""
    connection = socket.create_connection(("127.0.0.1", door.port), source_address=(address, 0))
    connection.settimeout(PATIENCE_S)
    connection.sendall(ASK)
    return connection


def answer(connection):
    """The status line; empty if the connection was closed without one."""
    with connection:
        try:
            return connection.recv(12).decode()
        except ConnectionError:
            return ""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts a server with limits."""
    with ExitStack() as stack:

        def start(**limits):
            stack.close()
            for name, limit in limits.items():
                monkeypatch.setattr(paced_listener, name, limit)
            return stack.enter_context(Door(tmp_path / "state", console="127.0.0.1:0"))

        yield start


def test_an_address_beyond_its_rate_waits_and_others_do_not(started):
    """Four of one address take the burst of three; the fourth waits half a second."""
    door = started(OF_NETWORK=(3, 2.0))
    begun = time.monotonic()
    crowd = [asking(door, "127.0.0.1") for _ in range(4)]
    other = asking(door, "127.0.0.2")
    assert answer(other) == "HTTP/1.1 200"
    crowd[3].settimeout(0.05)
    with pytest.raises(TimeoutError):
        crowd[3].recv(1)
    crowd[3].settimeout(PATIENCE_S)
    assert [answer(each) for each in crowd] == ["HTTP/1.1 200"] * 4
    assert time.monotonic() - begun >= 0.5


@pytest.mark.long
def test_an_address_far_beyond_its_rate_is_closed_late(started, monkeypatch):
    """None of its request is read, and it waited for that."""
    monkeypatch.setattr(token_buckets, "REFUSED_AFTER_S", 0.5)
    door = started(OF_NETWORK=(1, 1.0))
    begun = time.monotonic()
    found = [answer(each) for each in [asking(door, "127.0.0.1") for _ in range(6)]]
    assert found[0] == "HTTP/1.1 200"
    assert found.count("") >= 4
    assert time.monotonic() - begun >= 0.5


def test_all_together_wait_in_the_kernel_and_are_served(started):
    """Ten of ten addresses, a burst of two and ten a second: all are served in 0.8 s."""
    door = started(ALL=(2, 10.0))
    begun = time.monotonic()
    crowd = [asking(door, f"127.0.0.{number}") for number in range(10, 20)]
    assert [answer(each) for each in crowd] == ["HTTP/1.1 200"] * 10
    assert time.monotonic() - begun >= 0.7


def test_a_listener_that_ends_closes_what_waits(monkeypatch):
    """It does not wait for connections that it has not read."""
    monkeypatch.setattr(token_buckets, "REFUSED_AFTER_S", 3600.0)
    monkeypatch.setattr(paced_listener, "OF_NETWORK", (1, 0.1))

    async def scene():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            address = listener.getsockname()
            paced = paced_listener.PacedListener(listener, lambda _: asyncio.Protocol())
            served, waiting = [await asyncio.open_connection(*address) for _ in range(2)]
            await asyncio.sleep(0.1)  # both are accepted
            paced.close()
            await asyncio.wait_for(paced.wait_closed(), 10.0)
            assert await waiting[0].read() == b""
            for _, writer in (served, waiting):
                writer.close()

    asyncio.run(scene())
