"""Serves the API and the console on a TCP port.

Plain HTTP on loopback, TLS elsewhere and behind a proxy that passes it on, with a certificate of
the federation's authority or one that the operator configures. Certificates are reloaded every
hour, without a restart.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fastapi import FastAPI

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.access.shield import Shield
from fedloom.server.config import AUTO, ServerConfig, split_address
from fedloom.server.http.slow_connections import PatientProtocol
from fedloom.server.http.unix_socket import BACKLOG, http_settings, run_until_cancelled
from fedloom.server.pki.authority import Authority

log = logging.getLogger(__name__)

AUTO_PORTS = range(7445, 7455)
RELOAD_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleListener:
    """A listener of the console.

    Attributes:
        listener: bound and listening.
        context: of TLS; None on plain loopback.
        port: the bound port.
    """

    listener: socket.socket
    context: ssl.SSLContext | None
    port: int


@contextmanager
def listening(
    state_dir: Path, config: ServerConfig, authority: Authority | None
) -> Iterator[ConsoleListener | None]:
    """Bind the console's port; None if the console is off or no port is free.

    Raises:
        UsageError: TLS is needed but not available, or its certificate cannot be read.
        UnavailableError: the configured port is taken.
    """
    listener = _listener(config)
    if listener is None:
        yield None
        return
    with listener:
        address, port = listener.getsockname()[:2]
        context = None
        has_tls = config.public is not None or bool(config.console_certificate)
        if has_tls or not ipaddress.ip_address(address).is_loopback:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.set_alpn_protocols(["http/1.1"])
            _load(context, state_dir, config, authority)
        yield ConsoleListener(listener=listener, context=context, port=port)


async def serve(
    app: FastAPI,
    console: ConsoleListener,
    state_dir: Path,
    config: ServerConfig,
    authority: Authority | None,
) -> None:
    """Serve until cancelled; requests in progress get `GRACE_S` seconds to end."""
    settings = http_settings(Shield(app, app.state.context.gate), PatientProtocol)
    settings.load()
    settings.ssl = console.context
    reloading = asyncio.ensure_future(_reload(console, state_dir, config, authority))
    try:
        await run_until_cancelled(settings, console.listener, config.proxy_networks())
    finally:
        reloading.cancel()
        await asyncio.wait([reloading])


async def _reload(
    console: ConsoleListener, state_dir: Path, config: ServerConfig, authority: Authority | None
) -> None:
    while console.context is not None:
        await asyncio.sleep(RELOAD_S)
        try:
            await asyncio.to_thread(_load, console.context, state_dir, config, authority)
        except (OSError, UsageError) as error:
            log.warning("the console's certificate was not reloaded: %s", error)


def _load(
    context: ssl.SSLContext, state_dir: Path, config: ServerConfig, authority: Authority | None
) -> None:
    if config.console_certificate:
        certificate, key = state_dir / config.console_certificate, config.console_key or None
        try:
            context.load_cert_chain(certificate, key and state_dir / key)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(
                "Expected a certificate and its key in PEM in `console_certificate` and "
                f"`console_key`, got: {error}."
            ) from None
        return
    if authority is None:
        raise UsageError(
            f"A console without TLS needs a loopback address and no public_name, got "
            f"{config.console}: set `console` to 127.0.0.1:PORT, or set `console_certificate`."
        )
    authority.ensure_server_certificate(config.certificate_names, datetime.now(UTC))
    context.load_cert_chain(state_dir / "pki" / "server.pem")


def _listener(config: ServerConfig) -> socket.socket | None:
    if not config.console:
        return None
    if config.console != AUTO:
        host, port = split_address(config.console, "console")
        try:
            return _bind(host, port)
        except OSError as error:
            raise UnavailableError(
                f"The console cannot listen on {config.console}: {error.strerror}. "
                "Is another program listening there?"
            ) from None
    for port in AUTO_PORTS:
        try:
            return _bind("127.0.0.1", port)
        except OSError:
            continue
    log.warning(
        "no console: the ports %d to %d are taken; set `console` in server.toml",
        AUTO_PORTS[0], AUTO_PORTS[-1],
    )  # fmt: skip
    return None


def _bind(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.create_server(address, family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener
