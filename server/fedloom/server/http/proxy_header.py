"""Reads who is behind a proxy that passes TLS on: the PROXY header, version 2.

The header comes before anything else on a connection. Its length is known from its first 16 bytes,
so exactly the header is read from the socket, and TLS starts at the next byte. Version 1 is a line
of text that cannot be read so; it is refused.

Source: W. Tarreau, "The PROXY protocol, versions 1 & 2", haproxy's doc/proxy-protocol.txt.

Invariant: whether a connection has a header follows from its address alone, never from its bytes: a
peer that is no proxy cannot choose its address.
"""

import asyncio
import ipaddress
import socket
import struct

from fedloom.protocol.errors import IntegrityError

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
HEADER_S = 5.0
"""Longest wait for a header, which a proxy sends at once."""

MAX_BYTES = 2048
"""Longest rest of a header: addresses and what a proxy may add, such as a certificate's name."""

_HEAD = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES = {0x11: 4, 0x21: 16}
"""TCP over IPv4 and over IPv6 → bytes of an address."""

Address = tuple[str, int]
"""Host and port of a peer."""


class ProxyHeaderError(IntegrityError):
    """A connection of a proxy does not begin with a PROXY header, version 2."""


async def read_caller(connection: socket.socket, proxy: Address) -> Address:
    """The caller whom a connection of a proxy is for.

    Args:
        connection: not blocking, of which nothing was read.
        proxy: its other end; the caller if the proxy speaks for itself, as in a check.

    Raises:
        ProxyHeaderError: it does not begin with a header, or not within `HEADER_S`.
    """
    try:
        async with asyncio.timeout(HEADER_S):
            signature, command, family, length = _HEAD.unpack(await _exactly(connection, 16))
            if signature != SIGNATURE or command not in (_LOCAL, _PROXY) or length > MAX_BYTES:
                raise ProxyHeaderError(
                    "Expected a PROXY header, version 2, got other bytes: set send-proxy-v2 in the "
                    f"proxy at {proxy[0]}, or take that address out of `proxies` in server.toml."
                )
            rest = await _exactly(connection, length)
    except (TimeoutError, OSError) as error:
        raise ProxyHeaderError(
            f"Expected a PROXY header from {proxy[0]}, got none within {HEADER_S:.0f} s."
        ) from error
    return proxy if command == _LOCAL else _caller(family, rest)


def _caller(family: int, rest: bytes) -> Address:
    size = _FAMILIES.get(family, 0)
    if not size or len(rest) < 2 * size + 4:
        raise ProxyHeaderError(
            f"Expected the addresses of a TCP connection in a PROXY header, got {len(rest)} bytes "
            f"of family 0x{family:02x}."
        )
    (port,) = struct.unpack_from("!H", rest, 2 * size)
    return str(ipaddress.ip_address(rest[:size])), port


async def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes, and not one more."""
    loop, read = asyncio.get_running_loop(), bytearray()
    while len(read) < size:
        part = await loop.sock_recv(connection, size - len(read))
        if not part:
            raise ConnectionResetError
        read += part
    return bytes(read)
