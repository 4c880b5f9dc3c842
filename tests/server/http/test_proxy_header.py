"""Who is behind a proxy: read from its PROXY header, and from nobody else's."""

import asyncio
import ipaddress
import socket
import struct

import pytest

from fedloom.server.http import proxy_header
from fedloom.server.http.paced_listener import PacedListener

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PROXY, LOCAL = 0x21, 0x20
TCP4, TCP6, UDP4 = 0x11, 0x21, 0x12
PATIENCE_S = 20.0


def header(source, command=PROXY, family=TCP4, extra=b""):
    """A header for a connection from a source, with what a proxy may add to it."""
    packed = [ipaddress.ip_address(each).packed for each in (source, source)]
    rest = b"".join(packed) + struct.pack("!HH", 5812, 443) + extra
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest)) + rest


class Greeter(asyncio.Protocol):
    """Answers the first bytes with the caller's address and these bytes."""

    def __init__(self, caller):
        self.caller = caller

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(f"{self.caller[0]} {self.caller[1]} ".encode() + data)
        self.transport.close()


def answer(*pieces, source="127.0.0.2", proxies=("127.0.0.2/32",)):
    """What a listener that trusts these proxies answers to pieces, sent one after the other."""

    async def scene():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            networks = tuple(map(ipaddress.ip_network, proxies))
            paced = PacedListener(listener, Greeter, networks)
            reader, writer = await asyncio.open_connection(
                *listener.getsockname(), local_addr=(source, 0)
            )
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01 if len(pieces) > 1 else 0)
                return (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode("latin-1")
            except ConnectionError:
                return ""
            finally:
                writer.close()
                paced.close()
                await paced.wait_closed()

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("sent", "caller"),
    [
        (header("192.0.2.7"), "192.0.2.7 5812"),
        (header("2001:db8::7", family=TCP6), "2001:db8::7 5812"),
        (header("192.0.2.7", extra=b"\x04\x00\x01x" * 100), "192.0.2.7 5812"),
    ],
    ids=["IPv4", "IPv6", "with additions"],
)
def test_the_caller_is_who_the_proxy_says(sent, caller):
    """And the bytes after the header are the connection's."""
    assert answer(sent + b"hello") == f"{caller} hello"


def test_a_header_may_come_in_pieces():
    """Byte by byte; the next bytes are not part of it."""
    sent = header("192.0.2.7") + b"h"
    assert answer(*(sent[i : i + 1] for i in range(len(sent)))) == "192.0.2.7 5812 h"


def test_a_proxy_may_speak_for_itself():
    """As in its checks: the caller is the proxy."""
    found = answer(SIGNATURE + struct.pack("!BBH", LOCAL, 0, 0) + b"hello")
    assert found.startswith("127.0.0.2 ")
    assert found.endswith(" hello")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 5812 443\r\nGET / HTTP/1.1\r\n\r\n",
        header("192.0.2.7", command=0x11),
        header("192.0.2.7", command=0x2F),
        header("192.0.2.7", family=UDP4),
        header("192.0.2.7", family=TCP6),
        SIGNATURE + struct.pack("!BBH", PROXY, TCP4, 65535) + bytes(65535),
    ],
    ids=["none", "version 1", "version", "command", "UDP", "family", "length"],
)
def test_a_proxy_without_a_valid_header_is_closed(sent, caplog):
    """With the reason in the log, and what to do."""
    assert answer(sent) == ""
    assert "PROXY header" in caplog.text


def test_a_silent_proxy_is_closed(monkeypatch, caplog):
    """After a while."""
    monkeypatch.setattr(proxy_header, "HEADER_S", 0.05)
    assert answer() == ""
    assert "got none within" in caplog.text


def test_nobody_else_chooses_an_address():
    """A header of a peer that is no trusted proxy is not read as one."""
    sent = header("192.0.2.7")
    found = answer(sent, source="127.0.0.3")
    assert found.startswith("127.0.0.3 ")
    assert found.encode("latin-1").endswith(sent)
    assert answer(sent, source="127.0.0.2", proxies=()).startswith("127.0.0.2 ")
