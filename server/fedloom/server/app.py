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
from fedloom.protocol.errors import UnavailableError, UsageError  # noqa: E402
from fedloom.protocol.trust.private_files import make_private, write_private  # noqa: E402
from fedloom.protocol.version import __version__  # noqa: E402
from fedloom.server import config as configuration  # noqa: E402
from fedloom.server import device_ports  # noqa: E402
from fedloom.server.access import oidc_http  # noqa: E402
from fedloom.server.access.site import make_site  # noqa: E402
from fedloom.server.config import ServerConfig, split_address  # noqa: E402
from fedloom.server.context import ServerContext, assemble  # noqa: E402
from fedloom.server.device_ports import Certificates  # noqa: E402
from fedloom.server.event_loop import ServerLoop  # noqa: E402
from fedloom.server.fleet import last_seen, refusal_log  # noqa: E402
from fedloom.server.fleet.context import FleetContext  # noqa: E402
from fedloom.server.fleet.desk import Desk  # noqa: E402
from fedloom.server.fleet.enrolment import EnrolmentService  # noqa: E402
from fedloom.server.fleet.service import FleetService  # noqa: E402
from fedloom.server.fleet.sessions import Hold  # noqa: E402
from fedloom.server.http import connection_limits, health, tcp_listener, unix_socket  # noqa: E402
from fedloom.server.ledger import Ledger  # noqa: E402
from fedloom.server.ledger.audit_trail import HEAD_FILE  # noqa: E402
from fedloom.server.ledger.store import unavailable  # noqa: E402
from fedloom.server.metrics import lag  # noqa: E402
from fedloom.server.pki.authority import Authority  # noqa: E402
from fedloom.server.pki.noise_keys import NoiseKeys  # noqa: E402
from fedloom.server.pki.signing_key import FOLDER as SIGNING  # noqa: E402
from fedloom.server.pki.signing_key import SigningKey  # noqa: E402
from fedloom.server.replicas import standby  # noqa: E402
from fedloom.server.replicas.gate import Gate  # noqa: E402
from fedloom.server.replicas.gate_sessions import GateSessions  # noqa: E402
from fedloom.server.replicas.key_vault import KeyVault  # noqa: E402
from fedloom.server.replicas.lease import ReplicaTurn, end_process  # noqa: E402
from fedloom.server.replicas.opening import open_ledger  # noqa: E402
from fedloom.server.replicas.relay import DRIVER  # noqa: E402
from fedloom.server.rounds.manager import Runs  # noqa: E402
from fedloom.server.rounds.upstream.outbox import FOLDER as OUTBOX  # noqa: E402
from fedloom.server.rounds.upstream.outbox import SumOutbox  # noqa: E402
from fedloom.server.routes import application  # noqa: E402
from fedloom.server.storage import pruning  # noqa: E402
from fedloom.server.storage.context import StorageContext  # noqa: E402
from fedloom.server.storage.objects import upkeep  # noqa: E402
from fedloom.server.storage.opening import open_storage  # noqa: E402

log = logging.getLogger(__name__)

FREEZE_AGAIN_S = application.SOON_S + 10
"""After it the API's description, which is built in the background, is frozen too."""


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
        serving: of a gate of this process that served devices when it began to drive, and goes on;
            ends only with an error.
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
        self._gate: Gate | None = None
        self.serving: asyncio.Future[None] | None = None
        self._ports: list[grpc.aio.Server] = []
        self._closing: asyncio.Future[None] | None = None
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
        if self.turn is not None:  # the next server drives while this one ends
            self._stack.push_async_callback(self._close_ports)
            self._stack.push_async_callback(asyncio.to_thread, self.turn.release)
        if server.storage.ledger.trail.stop_keeping():
            log.error("the audit trail lacks the head in %s: see `fedloom audit verify`", HEAD_FILE)
        detail = {"version": __version__}
        await server.access.audit_log.record(
            "fedloom", "server", "server.start", config.federation, detail
        )
        desk, storage = Desk(server.fleet, runs), server.storage
        fleet = FleetService(server.fleet, desk, runs, authority)
        gates = self._gate_sessions(self.turn, desk) if self.turn and config.gates else None
        self._stack.push_async_callback(runs.stop)
        await self._recall_clients(server.fleet)
        server.rounds.cool_offs.load(await storage.in_ledger(storage.ledger.failures))
        await runs.start()
        self._stack.push_async_callback(
            last_seen.store, server.fleet.presence, storage
        )  # stores the disconnects caused by the stop
        self._stack.push_async_callback(server.fleet.refusals.store, storage)
        self._stack.push_async_callback(server.fleet.audit_log.store)
        await desk.check_ins.count()  # before devices come, which are told when to come next
        for work in (gates.read(), gates.post(), gates.watch()) if gates else ():
            self._background(work)
        await self._listen(server.fleet, fleet)
        self._background(desk.check_ins.keep_counting())
        self._background(device_ports.sweep(server.fleet))
        self._background(last_seen.keep(server.fleet.presence, storage))
        self._background(refusal_log.keep(server.fleet.refusals, storage))
        self._background(server.fleet.audit_log.keep(config.keep_audit_s))
        self._keep_storage(storage)
        self._background(lag.keep(server.fleet.meters))
        await self._start_api(listener)
        log.info("fleet on port %d, enrolment on port %d", self.fleet_port, self.enrolment_port)
        if config.public is not None:
            log.info("reached at %s, %s", config.public.fleet, config.public.enrolment)
        self.health.is_ready = True
        self._stack.callback(self._begin_to_stop)

    async def _assemble(self, listener: socket.socket) -> ServerContext:
        """Open the ledger, in turn if there are replicas, the keys and the storage."""
        state_dir, config = self._state_dir, self.config
        ledger = await self._open_ledger(listener)
        self._stack.callback(ledger.close)
        write: Callable[[Path, bytes], None] = write_private
        storage = None
        if config.replicated:
            vault = KeyVault(state_dir, ledger)
            storage = await asyncio.to_thread(self._storage_of_another, ledger)
            self.turn = await self._wait_for_turn(ledger, vault, listener)
            write = vault.write
        elif ledger.wrapped_keys():
            raise UsageError(
                "Expected replicated = true, as this ledger has the keys of replicas, got false: "
                "another server may drive, and these keys may be newer than the files. Set it, or "
                "leave this database with `fedloom server move`."
            )
        authority = None if self._plaintext else Authority.load(state_dir / "pki", write)
        if storage is None:
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

    def _storage_of_another(self, ledger: Ledger) -> StorageContext | None:
        """The storage, open before its turn, where another server has begun one of this ledger."""
        if ledger.store_claim() is None:
            return None
        try:
            storage = open_storage(self._state_dir, self.config, ledger)
        except UnavailableError as error:  # it is not needed yet
            log.warning("the storage is not open yet: %s", error)
            return None
        self._stack.callback(storage.close)
        return storage

    async def _open_ledger(self, listener: socket.socket) -> Ledger:
        state_dir, database = self._state_dir, self.config.database
        if not self.config.replicated:
            return await asyncio.to_thread(Ledger.in_directory, state_dir, database)
        ledger = await open_ledger(state_dir, database, listener, self.stopping)
        if ledger is None:
            raise StoppedOnStandbyError
        return ledger

    async def _wait_for_turn(
        self, ledger: Ledger, vault: KeyVault, listener: socket.socket
    ) -> ReplicaTurn:
        """Wait on standby until this server drives; its keys are the ledger's then."""
        _freeze()  # not only when it drives: nothing is received or renewed meanwhile
        await asyncio.to_thread(vault.check)

        def check() -> None:
            ledger.check_readable()
            vault.check()

        turn = ReplicaTurn(ledger, gates=self.config.gates)
        self.health.replica = turn.state
        self._stack.push_async_callback(asyncio.to_thread, turn.release)
        await asyncio.to_thread(turn.check_database)
        async with standby.answering(listener) as answers:
            works: list[Coroutine[Any, Any, Any]] = [
                turn.wait(answers.driven_by, check), self.stopping.wait()
            ]  # fmt: skip
            gate = None
            if self.config.gates:
                gate = Gate(self._state_dir, self.config, self.health.serve_as_gate, turn.state)
                works.append(gate.serve())
            waits = [asyncio.ensure_future(work) for work in works]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[0].done() and waits[0].exception() is None:
                self._background(turn.keep())
                if gate is not None and gate.serves:
                    self._gate, self.serving = gate, waits.pop()
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
        for each in waits[2:]:
            if not each.cancelled():
                each.result()  # raises why the gate could not begin
        if waits[0].cancelled():
            raise StoppedOnStandbyError
        waits[0].result()
        await asyncio.to_thread(vault.restore)
        return turn

    async def _listen(self, context: FleetContext, fleet: FleetService) -> None:
        """Open the fleet's port, unless a gate of this process has it, and that of enrolment."""
        config, authority = self.config, self.authority
        if self.turn is None:
            self._stack.push_async_callback(self._close_ports)
        places, enrolling = connection_limits.places(connection_limits.raise_limit())
        certificates = (
            None if authority is None else Certificates(authority, config.certificate_names)
        )
        if self._gate is None:
            port, self.fleet_port = device_ports.fleet(config, context, fleet, certificates, places)
            self._ports.append(port)
            if self.turn is not None:
                self.turn.state.streams = fleet.num_streams
        else:
            self.fleet_port = self._gate.port
        if authority is not None and certificates is not None:
            service = EnrolmentService(context, authority, self.fleet_port, config.public)
            port, self.enrolment_port = device_ports.enrolment(
                config.enrolment, context, service, certificates, enrolling
            )
            self._ports.append(port)
        for port in self._ports:
            await port.start()

    def _begin_to_stop(self) -> None:
        """Send devices to other servers, if there are any, which go on meanwhile."""
        self.health.stop()
        if self.turn is not None:
            self._closing = asyncio.ensure_future(self._end_calls())

    async def _close_ports(self) -> None:
        await (self._closing or self._end_calls())

    async def _end_calls(self) -> None:
        """Close the ports, and end the gate of this process."""
        stop = device_ports.stop if self.turn is not None else _stop
        works: list[asyncio.Future[None]] = [
            asyncio.ensure_future(stop(each, self.context.fleet)) for each in self._ports
        ]
        if self.serving is not None:
            self.serving.cancel()
            works.append(self.serving)
        if works:
            await asyncio.wait(works)

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """What ends when this server must: with its turn, and with its gate."""
        works = [] if self.turn is None else [_end_with(self.turn)]
        return works if self.serving is None else [*works, _ended(self.serving)]

    def _gate_sessions(self, turn: ReplicaTurn, desk: Desk) -> GateSessions:
        """The devices of gates; before runs continue, which then leave sums to gates."""
        bell = self.context.storage.ledger.doorbell(DRIVER)
        self._stack.callback(bell.close)
        gates = GateSessions(self.context.fleet, desk, self.runs, turn, bell)
        self.context.rounds.sealed = gates.sealed
        return gates

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
        config, authority, public = self.config, self.authority, self.config.public
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
            fleet=public.fleet if public else _with_port(config.fleet, self.fleet_port),
            enrolment=public.enrolment
            if public
            else _with_port(config.enrolment, self.enrolment_port),
            site=site,
            oidc=oidc,
            replica=None if self.turn is None else self.turn.state,
        )
        self._background(unix_socket.serve(app, control_listener))
        self._background(application.describe_soon(app))
        if console is not None and site is not None:
            self._background(tcp_listener.serve(app, console, self._state_dir, config, authority))
            self.console = site.url
            log.info("console on %s: `fedloom console` prints a link that logs you in", site.url)
        self._stack.callback(self.context.fleet.live.close)  # open streams would delay the stop

    def _background(self, work: "asyncio.Future[None] | object") -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[arg-type]

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)


async def _stop(port: grpc.aio.Server, _context: FleetContext) -> None:
    await port.stop(device_ports.GRACE_S)


async def _ended(serving: "asyncio.Future[None]") -> None:
    """Wait for the end of a gate.

    Raises:
        Exception: why it cannot go on.
    """
    await asyncio.wait([serving])
    serving.result()


async def _end_with(turn: ReplicaTurn) -> None:
    """End this process when its turn is lost."""
    await end_process(await turn.lost, turn.note_loss)


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
            works: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(each) for each in (stopping.wait(), *server.watches())
            ]
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
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            runner.run(main())
    except StoppedOnStandbyError:
        log.info("stopped on standby")
    except sa.exc.OperationalError as error:
        raise unavailable(error) from error
