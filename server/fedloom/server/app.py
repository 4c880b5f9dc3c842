"""The server process: assembles its parts, starts them in order and stops them in reverse."""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import fedloom.protocol.transport  # noqa: F401 - before gRPC is imported


def tune_allocator() -> None:
    """Let glibc keep and reuse freed pages; must run before grpc is imported.

    The first access to a new page costs more than the copy into it. These thresholds cut the
    server's CPU per gigabyte of uploads in five of six comparisons; one arena collects what many
    threads free.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        mmap_threshold, trim_threshold, arena_max = -3, -1, -8
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(arena_max, 1)


tune_allocator()

import grpc  # noqa: E402 - after the allocator
import sqlalchemy as sa  # noqa: E402

from fedloom.protocol import tracing  # noqa: E402
from fedloom.protocol.atomic_files import write_whole  # noqa: E402
from fedloom.protocol.errors import Code, Refusal, UnavailableError, UsageError  # noqa: E402
from fedloom.protocol.transport import methods  # noqa: E402
from fedloom.protocol.trust.private_files import make_private, write_private  # noqa: E402
from fedloom.protocol.version import __version__  # noqa: E402
from fedloom.server import config as configuration  # noqa: E402
from fedloom.server.access import oidc_http  # noqa: E402
from fedloom.server.access.site import make_site  # noqa: E402
from fedloom.server.config import ServerConfig, split_address  # noqa: E402
from fedloom.server.context import ServerContext, assemble  # noqa: E402
from fedloom.server.fleet import last_seen, pacing, refusal_log  # noqa: E402
from fedloom.server.fleet.context import FleetContext  # noqa: E402
from fedloom.server.fleet.enrolment import EnrolmentService  # noqa: E402
from fedloom.server.fleet.service import FleetService  # noqa: E402
from fedloom.server.fleet.sessions import Hold  # noqa: E402
from fedloom.server.http import connection_limits, health, tcp_listener, unix_socket  # noqa: E402
from fedloom.server.ledger import Ledger  # noqa: E402
from fedloom.server.ledger.audit_trail import HEAD_FILE  # noqa: E402
from fedloom.server.ledger.store import unavailable  # noqa: E402
from fedloom.server.metrics import lag, meters  # noqa: E402
from fedloom.server.pki.authority import Authority, ServerBundle  # noqa: E402
from fedloom.server.pki.noise_keys import NoiseKeys  # noqa: E402
from fedloom.server.pki.signing_key import FOLDER as SIGNING  # noqa: E402
from fedloom.server.pki.signing_key import SigningKey  # noqa: E402
from fedloom.server.replicas import standby  # noqa: E402
from fedloom.server.replicas.key_vault import KeyVault  # noqa: E402
from fedloom.server.replicas.lease import ReplicaTurn  # noqa: E402
from fedloom.server.rounds.manager import Runs  # noqa: E402
from fedloom.server.rounds.upstream.outbox import FOLDER as OUTBOX  # noqa: E402
from fedloom.server.rounds.upstream.outbox import SumOutbox  # noqa: E402
from fedloom.server.routes import application  # noqa: E402
from fedloom.server.storage import pruning  # noqa: E402
from fedloom.server.storage.context import StorageContext  # noqa: E402
from fedloom.server.storage.objects import upkeep  # noqa: E402
from fedloom.server.storage.opening import open_storage  # noqa: E402

log = logging.getLogger(__name__)

SWEEP_S = 1.0
CERTIFICATE_CHECK_S = 3600.0
GRACE_S = 1.0
FREEZE_AGAIN_S = 10.0
"""After it the API's description, which is built in the background, is frozen too."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *methods.COMMON_OPTIONS,
    # Otherwise two servers could share a port unnoticed.
    ("grpc.so_reuseport", 0),
    # For many clients that reconnect at once: the default refuses them at about 1,000.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
    # Close connections that do not finish their handshake.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_permit_without_calls", 1),
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


class StoppedOnStandbyError(Exception):
    """The server was told to stop before it was its turn to drive."""


class Server:
    """A server over a state directory.

    Args:
        state_dir: made by `fedloom server init`.
        plaintext: no TLS and no certificates; on loopback only.
        stopping: set when the server is to stop, also while it is on standby.

    Attributes:
        context: of all parts, once started.
        runs: the active runs, once started.
        authority: None on plaintext.
        fleet_port: the bound port, once started.
        enrolment_port: the bound port, once started; 0 on plaintext.
        console: URL of the console, once started; empty if it does not listen.
        stopping: see above.
        turn: of one server of several, once it drives; None for a server alone.
        health: what it tells a balancer.
    """

    def __init__(
        self, state_dir: Path, *, plaintext: bool = False, stopping: asyncio.Event | None = None
    ) -> None:
        self.config: ServerConfig = configuration.load(state_dir)
        if self.config.flower:
            from fedloom.server import flower  # noqa: PLC0415 - only for runs of Flower strategies

            flower.register(self.config.flower, state_dir.resolve())
        self.context: ServerContext
        self.runs: Runs
        self.authority: Authority | None
        self.fleet_port = 0
        self.enrolment_port = 0
        self.console = ""
        self.turn: ReplicaTurn | None = None
        self.health = health.Readiness()
        self.stopping = stopping or asyncio.Event()
        self._state_dir = state_dir
        self._plaintext = plaintext
        self._stack = AsyncExitStack()
        if plaintext:
            _require_loopback(self.config.fleet)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        state_dir, config = self._state_dir, self.config
        if mended := make_private(state_dir, configuration.PRIVATE):
            text = ", ".join(mended[:8]) + ", ..." * (len(mended) > 8)
            log.warning("took %d files and folders from other users: %s", len(mended), text)
        listener = await self._stack.enter_async_context(
            unix_socket.listening(state_dir / "control.sock")
        )
        if config.health:
            port = self._stack.enter_context(health.listening(config.health))
            self._background(health.serve(self.health, port))
        server = await self._assemble(listener)
        runs, authority = self.runs, self.authority
        if server.storage.ledger.trail.stop_keeping():
            log.error("the audit trail lacks the head in %s: see `fedloom audit verify`", HEAD_FILE)
        detail = {"version": __version__}
        await server.access.audit_log.record(
            "fedloom", "server", "server.start", config.federation, detail
        )
        fleet, storage = FleetService(server.fleet, runs, authority), server.storage
        self._stack.push_async_callback(runs.stop)
        await self._recall_clients(server.fleet)
        server.rounds.cool_offs.load(await storage.in_ledger(storage.ledger.failures))
        await runs.start()
        self._stack.push_async_callback(
            last_seen.store, server.fleet.presence, storage
        )  # stores the disconnects caused by the stop
        self._stack.push_async_callback(server.fleet.refusals.store, storage)
        self._stack.push_async_callback(server.fleet.audit_log.store)
        await self._listen(server.fleet, fleet)
        self._background(_sweep(server.fleet))
        self._background(last_seen.keep(server.fleet.presence, storage))
        self._background(refusal_log.keep(server.fleet.refusals, storage))
        self._background(server.fleet.audit_log.keep(config.keep_audit_s))
        self._keep_storage(storage)
        self._background(lag.keep(server.fleet.meters))
        await self._start_api(listener)
        log.info("fleet on port %d, enrolment on port %d", self.fleet_port, self.enrolment_port)
        self.health.is_ready = True
        self._stack.callback(self.health.stop)

    async def _assemble(self, listener: socket.socket) -> ServerContext:
        """Open the ledger, in turn if there are replicas, the keys and the storage."""
        state_dir, config = self._state_dir, self.config
        ledger = await asyncio.to_thread(Ledger.in_directory, state_dir, config.database)
        self._stack.callback(ledger.close)
        write: Callable[[Path, bytes], None] = write_private
        if config.replicated:
            vault = KeyVault(state_dir, ledger)
            self.turn = await self._wait_for_turn(ledger, vault, listener)
            write = vault.write
        elif ledger.wrapped_keys():
            raise UsageError(
                "Expected replicated = true, as this ledger has the keys of replicas, got false: "
                "another server may drive, and these keys may be newer than the files. Set it, or "
                "leave this database with `fedloom server move`."
            )
        authority = None if self._plaintext else Authority.load(state_dir / "pki", write)
        storage = await asyncio.to_thread(open_storage, state_dir, config, ledger)
        server = assemble(
            config,
            storage,
            NoiseKeys(state_dir / "noise", write),
            signing=None
            if authority is None
            else SigningKey.ensure(state_dir / SIGNING, authority.federation, write),
            root_pem=b"" if authority is None else authority.root_pem,
            tracer=tracing.tracer(config.tracing.endpoint, "fedloom-server", config.federation),
        )
        server.rounds.app_runs = state_dir.resolve() / "flower"
        server.rounds.outbox = SumOutbox(state_dir / OUTBOX)
        server.rounds.apps = {
            name: (state_dir / folder).resolve() for name, folder in config.flower_apps.items()
        }
        self._stack.push_async_callback(asyncio.to_thread, server.rounds.tracer.close)
        self._stack.callback(server.close)
        self._stack.enter_context(server.log_ring.listening())
        runs = Runs(server.rounds)
        self.context, self.runs, self.authority = server, runs, authority
        return server

    async def _wait_for_turn(
        self, ledger: Ledger, vault: KeyVault, listener: socket.socket
    ) -> ReplicaTurn:
        """Wait on standby until this server drives; its keys are the ledger's then."""
        await asyncio.to_thread(vault.check)
        turn = ReplicaTurn(ledger)
        self._stack.push_async_callback(asyncio.to_thread, turn.release)
        await asyncio.to_thread(turn.check_database)
        async with standby.answering(listener) as answers:
            works = [turn.wait(answers.driven_by), self.stopping.wait()]
            waits = [asyncio.ensure_future(work) for work in works]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
        if waits[0].cancelled():
            raise StoppedOnStandbyError
        waits[0].result()
        self._background(turn.keep())
        await asyncio.to_thread(vault.restore)
        return turn

    async def _listen(self, context: FleetContext, fleet: FleetService) -> None:
        """Open the fleet's port, and that of enrolment."""
        authority = self.authority
        places, enrolling = connection_limits.places(connection_limits.raise_limit())
        limits = ((MAX_CONNECTIONS, places), (MAX_STREAMS, pacing.MAX_STREAMS))
        listening = grpc.aio.server(options=[*SERVER_OPTIONS, *limits])
        listening.add_generic_rpc_handlers((fleet.handlers(),))
        if authority is None:
            self.fleet_port = _bind(listening, self.config.fleet, None)
        else:
            certificates = Certificates(authority, self.config.names)
            begun = context.meters.connections.labels(meters.FLEET).inc
            self.fleet_port = _bind(
                listening, self.config.fleet, certificates.credentials(ask_client=True, begun=begun)
            )
            await self._start_enrolment(context, authority, certificates, enrolling)
        await listening.start()
        self._stack.push_async_callback(listening.stop, GRACE_S)

    def _keep_storage(self, storage: StorageContext) -> None:
        self._background(pruning.keep(storage, self.config.keep_models))
        if storage.remote is not None:
            cache_bytes = self.config.store_cache_bytes
            self._background(upkeep.keep(storage.remote, storage.models, cache_bytes))

    async def _recall_clients(self, context: FleetContext) -> None:
        """Read what the ledger knows of clients: their study, whether they are sites, and holds."""
        ledger, fleet = context.ledger, context.fleet
        for client, study in (await context.in_ledger(ledger.studies)).items():
            fleet.assign(client, study)
        for client, devices in (await context.in_ledger(ledger.sites)).items():
            fleet.register_site(client, devices)
        for client, why in (await context.in_ledger(ledger.holds)).items():
            fleet.hold(client, Hold(why))

    async def _start_api(self, control_listener: socket.socket) -> None:
        config, authority = self.config, self.authority
        console = self._stack.enter_context(
            tcp_listener.listening(self._state_dir, config, authority)
        )
        site = oidc = None
        if console is not None:
            site = make_site(config, console.port, tls=console.context is not None)
            if config.oidc is not None:
                oidc = oidc_http.load(config.oidc, self._state_dir, site.url)
        app = application.create_app(
            self.context,
            self.runs,
            authority,
            fleet=_with_port(config.fleet, self.fleet_port),
            enrolment=_with_port(config.enrolment, self.enrolment_port),
            site=site,
            oidc=oidc,
        )
        self._background(unix_socket.serve(app, control_listener))
        self._background(application.describe_soon(app))
        if console is not None and site is not None:
            self._background(tcp_listener.serve(app, console, self._state_dir, config, authority))
            self.console = site.url
            log.info("console on %s: `fedloom console` prints a link that logs you in", site.url)
        self._stack.callback(self.context.fleet.live.close)  # open streams would delay the stop

    async def _start_enrolment(
        self, context: FleetContext, authority: Authority, certificates: Certificates, places: int
    ) -> None:
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
        service = EnrolmentService(context, authority, self.fleet_port)
        server.add_generic_rpc_handlers((service.handlers(),))
        begun = context.meters.connections.labels(meters.ENROLMENT).inc
        self.enrolment_port = _bind(
            server, self.config.enrolment, certificates.credentials(ask_client=False, begun=begun)
        )
        await server.start()
        self._stack.push_async_callback(server.stop, GRACE_S)

    def _background(self, work: "asyncio.Future[None] | object") -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[arg-type]

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)


async def _end_with(turn: ReplicaTurn) -> None:
    """End this process at once when its turn is lost: nothing that it still holds counts."""
    reason = await turn.lost
    log.critical("this server ends: %s. Started again, it is on standby.", reason)
    try:
        await asyncio.to_thread(turn.note_loss)
    finally:
        logging.shutdown()
        os._exit(UnavailableError.exit_code)


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


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}" if port else ""


def _require_loopback(address: str) -> None:
    host, _ = split_address(address, "fleet")
    infos = socket.getaddrinfo(host, None)
    if not all(str(info[4][0]).startswith(("127.", "::1")) for info in infos):
        raise UsageError(
            f"Without TLS, fleet must be a loopback address, got {address}: "
            "set it to 127.0.0.1:PORT, or run with certificates."
        )


async def _sweep(context: FleetContext) -> None:
    """End open calls whose certificates have expired or were revoked by another process.

    Until then new calls of such a client may begin. A revocation through the API counts at once.
    """
    while True:
        await asyncio.sleep(SWEEP_S)
        revoked = await context.in_ledger(context.ledger.revoked_clients)
        now = datetime.now(UTC)
        for call in context.fleet.calls():
            if call.client in revoked:
                call.end(Refusal(Code.REVOKED, f"The client {call.client!r} was revoked."))
            elif call.peer is not None and now >= call.peer.not_after:
                call.end(Refusal(Code.EXPIRED, "The certificate has expired: renew it."))


def _freeze() -> None:
    """Leave what the start has made, 180,000 objects, out of the collections of garbage.

    Each full collection would look at all of them: 0.06 to 0.16 s, in which nothing is received.
    """
    gc.collect()
    gc.freeze()


def run(
    state_dir: Path,
    *,
    plaintext: bool = False,
    ready: Path | None = None,
    beside: Callable[[Server], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        state_dir: made by `fedloom server init`.
        plaintext: no TLS; on loopback only.
        ready: file to which the ports are written, atomically, once all listen.
        beside: runs in the process beside the server, which ends with it.

    Raises:
        Exception: an error of `beside`.
        UnavailableError: the disk is full, or the ledger's database does not answer.
        FedloomError: a setting, a file of the state directory or a port is not as it must be.
    """
    os.umask(0o077)  # also for the files of SQLite and of libraries

    async def main() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        async with Server(state_dir, plaintext=plaintext, stopping=stopping) as server:
            _freeze()
            loop.call_later(FREEZE_AGAIN_S, _freeze)
            if ready is not None:
                write_whole(ready, f"{server.fleet_port} {server.enrolment_port}\n")
            works: list[asyncio.Future[Any]] = [asyncio.ensure_future(stopping.wait())]
            if server.turn is not None:
                works.append(asyncio.ensure_future(_end_with(server.turn)))
            if beside is not None:
                works.append(asyncio.ensure_future(beside(server)))
            ended, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            log.info("stopping")
            for work in works:
                work.cancel()
            await asyncio.wait(works)
            for work in ended:
                work.result()

    try:
        asyncio.run(main())
    except StoppedOnStandbyError:
        log.info("stopped on standby")
    except sa.exc.OperationalError as error:
        raise unavailable(error) from error
