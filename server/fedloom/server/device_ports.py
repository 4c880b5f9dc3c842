"""The ports on which devices reach a server: TLS with certificates that renew, and limits."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf

import grpc

from fedloom.protocol.errors import Code, Refusal, UnavailableError
from fedloom.protocol.transport import methods
from fedloom.server.config import ServerConfig
from fedloom.server.fleet import pacing
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.enrolment import EnrolmentService
from fedloom.server.fleet.service import FleetService
from fedloom.server.metrics import meters
from fedloom.server.pki.authority import Authority, ServerBundle

SWEEP_S = 1.0
TRANSFER_S = 600.0
"""Longest time for which a transfer keeps its client's stream beyond its age."""
CERTIFICATE_CHECK_S = 3600.0
GRACE_S = 1.0
"""Time that calls get to end when a server stops."""
LOOK_S = 0.05
"""Interval at which a server that stops looks which streams may end."""

STRANGER_PING_S = 60.0
"""Silence after which a connection to the enrolment port is tested."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *methods.COMMON_OPTIONS,
    # Otherwise two servers could share a port unnoticed.
    ("grpc.so_reuseport", 0),
    # For many clients that reconnect at once: the default refuses them at about 1,000.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
    # Close connections that do not finish their handshake.
    ("grpc.server_handshake_timeout_ms", 10_000),
    *methods.pings(STRANGER_PING_S),
    # Its traces are not used, and take one or two KiB per connection.
    ("grpc.enable_channelz", 0),
    # Half the default TLS buffer: 4 KiB less per idle client, at the same CPU per download.
    ("grpc.tsi.max_frame_size", 8192),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)

MAX_CONNECTIONS = "grpc.max_allowed_incoming_connections"
MAX_STREAMS = "grpc.max_concurrent_streams"

ENROLLING = 64
"""Enrolments in progress at once, beside the answers that `PeerPace` holds back."""


class Certificates:
    """The server's certificate, renewed before it expires and used by new handshakes."""

    def __init__(self, authority: Authority, names: tuple[str, ...]) -> None:
        self._authority = authority
        self._names = names
        self._current = self._load(datetime.now(UTC))

    def _load(self, now: datetime) -> tuple[ServerBundle, bytes]:
        """The server's certificate, and the authorities that clients' certificates must lead to."""
        self._checked_at = now
        bundle = self._authority.ensure_server_certificate(self._names, now)
        return bundle, self._authority.trusted_pem

    def credentials(
        self, *, ask_client: bool, begun: Callable[[], None] = lambda: None
    ) -> grpc.ServerCredentials:
        """Credentials for a port.

        Args:
            ask_client: require certificates of its peers.
            begun: called for each handshake that begins, from any thread.
        """
        given = self._current  # to this port: each must be notified of a change

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            begun()
            before, given = given, self._latest()
            return None if before == given else _configuration(*given)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(*given),
            fetch,  # type: ignore[arg-type] # may return None: no change
            require_client_authentication=ask_client,
        )

    def _latest(self) -> tuple[ServerBundle, bytes]:
        now = datetime.now(UTC)
        due = (now - self._checked_at).total_seconds() >= CERTIFICATE_CHECK_S
        if due or self._current[1] != self._authority.trusted_pem:
            self._current = self._load(now)
        return self._current


def _configuration(bundle: ServerBundle, trusted_pem: bytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(bundle.key_pem, bundle.chain_pem)], root_certificates=trusted_pem
    )


def fleet(
    config: ServerConfig,
    context: FleetContext,
    service: FleetService,
    certificates: Certificates | None,
    places: int,
) -> tuple[grpc.aio.Server, int]:
    """Make the server of devices that have certificates; returns it, and its port.

    Args:
        config: with the address to listen on.
        context: of the service.
        service: of the devices.
        certificates: of the server; None on plaintext loopback.
        places: most connections.

    Raises:
        UnavailableError: it cannot listen there.
    """
    limits = {MAX_CONNECTIONS: places, MAX_STREAMS: pacing.MAX_STREAMS}
    options = dict(SERVER_OPTIONS) | dict(methods.pings(config.ping_s)) | limits
    server = grpc.aio.server(options=[*options.items()])
    server.add_generic_rpc_handlers((service.handlers(),))
    begun = context.meters.connections.labels(meters.FLEET).inc
    if certificates is None:
        return server, _bind(server, config.fleet, None)
    credentials = certificates.credentials(ask_client=True, begun=begun)
    return server, _bind(server, config.fleet, credentials)


def enrolment(
    address: str,
    context: FleetContext,
    service: EnrolmentService,
    certificates: Certificates,
    places: int,
) -> tuple[grpc.aio.Server, int]:
    """Make the server of devices that have no certificate yet, as `fleet` does."""
    # Callers are unauthenticated: few at a time, small messages. gRPC uses the first of two
    # equal options, so these limits must replace the fleet's.
    limits = {
        "grpc.max_receive_message_length": 64 * 1024,
        MAX_CONNECTIONS: places,
        MAX_STREAMS: pacing.STRANGER_STREAMS,
    }
    options = dict(SERVER_OPTIONS) | limits
    at_once = ENROLLING + pacing.HELD
    server = grpc.aio.server(options=[*options.items()], maximum_concurrent_rpcs=at_once)
    server.add_generic_rpc_handlers((service.handlers(),))
    begun = context.meters.connections.labels(meters.ENROLMENT).inc
    return server, _bind(server, address, certificates.credentials(ask_client=False, begun=begun))


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        port: int = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise UnavailableError(
            f"The server cannot listen on {address}: {str(error).partition(';')[0]}. "
            "Is another program listening there?"
        ) from error
    return port


async def stop(server: grpc.aio.Server, context: FleetContext) -> None:
    """Close a port of devices; a stream ends once its client transfers nothing.

    So devices connect elsewhere at once, and transfers have `GRACE_S` to end. For servers of which
    another one goes on; a server alone gives its streams this time, too.
    """
    closing = asyncio.ensure_future(server.stop(GRACE_S))
    while not closing.done():
        calls = [call for call in context.fleet.calls() if call.ages_at < inf]
        counts = Counter(call.client for call in context.fleet.calls())
        for call in calls:
            if counts[call.client] == 1:
                call.move()
        await asyncio.wait([closing], timeout=LOOK_S)


async def sweep(context: FleetContext, every_s: float = SWEEP_S) -> None:
    """End open calls whose certificates have expired or were revoked by another process.

    Until then new calls of such a client may begin. A revocation through the API counts at once.
    Streams of a great age end, too, once their clients transfer nothing here.
    """
    while True:
        await asyncio.sleep(every_s)
        revoked = await context.in_ledger(context.ledger.revoked_clients)
        now, age = datetime.now(UTC), time.monotonic()
        calls, old = context.fleet.calls(), []
        for call in calls:
            if call.client in revoked:
                call.end(Refusal(Code.REVOKED, f"The client {call.client!r} was revoked."))
            elif call.peer is not None and now >= call.peer.not_after:
                call.end(Refusal(Code.EXPIRED, "The certificate has expired: renew it."))
            elif age >= call.ages_at:
                old.append(call)
        counts = Counter(call.client for call in calls) if old else Counter()
        for call in old:
            if age >= call.ages_at + (TRANSFER_S if counts[call.client] > 1 else 0.0):
                call.move()
