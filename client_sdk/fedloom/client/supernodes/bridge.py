"""Runs a bridge: it listens for SuperNodes over TLS, and attends the server for those there."""

import asyncio
import logging
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedloom.client.state.process_lock import only_agent
from fedloom.client.supernodes import apps, settings
from fedloom.client.supernodes.apps import AppBundle
from fedloom.client.supernodes.fleet_api import FleetApi
from fedloom.client.supernodes.node import CONFIG, KEY, Node
from fedloom.client.supernodes.remote_app import Places
from fedloom.client.supernodes.settings import BridgeConfig
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError

log = logging.getLogger(__name__)

NODES: Final = "nodes"
"""Folder of the enrolled SuperNodes in a bridge's folder."""
LOOK_S: Final = 1.0
"""Shortest time between two looks for newly enrolled keys."""
HEAD_S: Final = 10.0
"""Time for the first call of a connection to arrive."""
KEEP_S: Final = 75
"""Time for which a connection without calls is kept."""
CONNECTIONS: Final = 4096
STOP_S: Final = 2


class EnrolledNodes:
    """The SuperNodes of a bridge; those that are enrolled while it runs are found by their key.

    Args:
        folder: of all of them.
        config: of the bridge.
        app: that they run.
    """

    def __init__(self, folder: Path, config: BridgeConfig, app: AppBundle) -> None:
        self._folder, self._config, self._app = folder, config, app
        self._places = Places()
        self._nodes: dict[Path, Node] = {}
        self._by_key: dict[bytes, Node] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._looked_at = -LOOK_S

    def by_key(self, pem: bytes) -> Node | None:
        """The one with this key; None if it is not enrolled."""
        if pem not in self._by_key and time.monotonic() - self._looked_at >= LOOK_S:
            self.look()
        return self._by_key.get(pem)

    def look(self) -> int:
        """Begin with those that are new; returns how many there are."""
        self._looked_at = time.monotonic()
        for path in sorted(self._folder.glob(f"*/{KEY}")):
            if path.parent in self._nodes or not (path.parent / CONFIG).exists():
                continue
            try:
                node = Node(
                    path.parent, self._app, self._places,
                    client_fn=self._config.client_fn, evaluates=self._config.evaluate,
                )  # fmt: skip
            except (FedloomError, OSError) as error:
                log.warning("the SuperNode in %s is left out: %s", path.parent, error)
                continue
            self._nodes[path.parent] = self._by_key[node.key] = node
            self._running.add(asyncio.ensure_future(node.run()))
        return len(self._nodes)

    async def stop(self) -> None:
        """End the agents."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


class _PatientProtocol(H11Protocol):
    """HTTP that closes connections which are too many, or whose first call does not come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        self._head = self.loop.call_later(HEAD_S, self._check_head)

    def _check_head(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """Leaves signals to the bridge."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Bridge:
    """A bridge over its folder.

    Args:
        directory: with `bridge.toml` and the enrolled SuperNodes.

    Raises:
        UsageError: a setting, the app or a file of TLS is not valid.
    """

    def __init__(self, directory: Path) -> None:
        self.config = settings.load(directory)
        self._app = apps.load(self.config.app)
        self._tls = _tls(self.config)
        self._folder = directory / NODES

    async def serve(self, listener: socket.socket, stopping: asyncio.Event) -> None:
        """Serve SuperNodes until `stopping` is set."""
        nodes = EnrolledNodes(self._folder, self.config, self._app)
        log.info(
            "port %d; %d SuperNodes are enrolled, for %s %s",
            listener.getsockname()[1], nodes.look(), self._app.id, self._app.version,
        )  # fmt: skip
        server = _Server(self._http(nodes))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        ended = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        await nodes.stop()
        server.should_exit = True
        await serving

    def _http(self, nodes: EnrolledNodes) -> uvicorn.Config:
        http = uvicorn.Config(
            FleetApi(nodes.by_key, self._app).app,
            http=_PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_S,
            timeout_graceful_shutdown=STOP_S,
        )
        http.load()
        http.ssl = self._tls
        return http


def run(directory: Path, ready: Path | None = None) -> None:
    """Run a bridge until SIGTERM or SIGINT.

    Args:
        directory: with `bridge.toml` and the enrolled SuperNodes.
        ready: file to which the port is written once it listens.

    Raises:
        UsageError: a setting, the app or a file of TLS is not valid, or another bridge runs.
        UnavailableError: the port is taken.
    """
    bridge = Bridge(directory)

    async def main(listener: socket.socket) -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # on Windows
                asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        await bridge.serve(listener, stopping)
        log.info("stopped")

    remedy = "stop that bridge, or use another folder."
    with only_agent(directory, remedy), _listening(bridge.config) as listener:
        if ready is not None:
            write_whole(ready, f"{listener.getsockname()[1]}\n")
        asyncio.run(main(listener))


def _tls(config: BridgeConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.certificate, config.key)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"Expected a certificate in {config.certificate} and its key in {config.key}, in PEM, "
            f"got: {error}."
        ) from None
    return context


@contextmanager
def _listening(config: BridgeConfig) -> Iterator[socket.socket]:
    host, port = config.address
    try:
        found: Any = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        listener = socket.create_server(address, family=family, backlog=512)
    except OSError as error:
        raise UnavailableError(
            f"The bridge cannot listen on {config.listen}: {error.strerror}. "
            "Is another program listening there?"
        ) from None
    with listener:
        listener.setblocking(False)
        yield listener
