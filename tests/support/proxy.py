"""haproxy in front of servers, by the file of `deploy/`, but for its addresses and ports.

Its public name is `localhost`, which every machine resolves. The two names below it are this
machine's, too (RFC 6761, 6.3), but few resolvers know that: this process is told by a patch.
"""

import socket
import ssl
import subprocess
from contextlib import suppress

import pytest

from cluster import haproxy
from fedloom.protocol import transport  # noqa: F401 - before gRPC is imported
from support.ports import steady_port
from support.site_servers import wait_until

import grpc  # isort: skip

NAME = haproxy.NAME


def settings(port):
    """Settings of a server behind the proxy on this port of loopback."""
    return {
        "public_name": f"{NAME}:{port}",
        "proxies": ("127.0.0.1",),
        "console": f"127.0.0.1:{steady_port()}",
        "health": f"127.0.0.1:{steady_port()}",
    }


def hello(name):
    """The first message of a TLS client that asks for a name, or for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


class Proxy:
    """A running haproxy; ended by `close`.

    Args:
        directory: for its settings and its log.
        port: of loopback.
        servers: settings of up to three servers, made with `settings`.
    """

    def __init__(self, directory, port, *servers):
        self.port, self._log = port, directory / "haproxy.log"
        path = directory / "haproxy.cfg"
        path.write_text(haproxy.configured(port, servers))
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [haproxy.program(), "-f", path], stdout=log, stderr=log
            )
        wait_until(self._listens, f"haproxy listens: {self.log()}")
        self._patch = pytest.MonkeyPatch()
        _resolve_names(self._patch)

    def _listens(self):
        with suppress(ConnectionError), self.connect():
            return True

    def log(self):
        return self._log.read_text()

    def close(self):
        self._patch.undo()
        self._process.kill()
        self._process.wait()

    def connect(self, source="127.0.0.1"):
        """A connection from an address of loopback."""
        return socket.create_connection(("127.0.0.1", self.port), 10.0, source_address=(source, 0))

    def refuses(self, source="127.0.0.1", sent=b""):
        """Whether a connection that sends these bytes is closed without an answer."""
        with suppress(ConnectionError), self.connect(source) as connection:
            connection.sendall(sent)
            return connection.recv(1) == b""
        return True

    def wait_for_servers(self):
        """Wait until a server behind it answers: haproxy checks them every half a second."""
        first = hello(f"enroll.{NAME}")
        wait_until(lambda: not self.refuses(sent=first), f"haproxy serves: {self.log()}")


def _resolve_names(patch):
    """Let Python and gRPC connect to 127.0.0.1 by the names below `NAME`."""
    lookup, channel = socket.getaddrinfo, grpc.aio.secure_channel

    def getaddrinfo(host, *args, **kwargs):
        is_ours = isinstance(host, str) and host.endswith(f".{NAME}")
        return lookup("127.0.0.1" if is_ours else host, *args, **kwargs)

    def secure_channel(target, credentials, options=None):
        host, _, port = target.rpartition(":")
        if not host.endswith(f".{NAME}"):
            return channel(target, credentials, options)
        named = [*(options or ()), ("grpc.ssl_target_name_override", host)]
        return channel(f"127.0.0.1:{port}", credentials, named)

    patch.setattr(socket, "getaddrinfo", getaddrinfo)
    patch.setattr(grpc.aio, "secure_channel", secure_channel)
