"""A gate: serves devices while another server drives, and goes on when its own begins to drive.

It terminates their TLS, sends models, and receives, checks and accepts updates; it decides nothing.
It ends when it is struck out, or when the database has not answered for long, as a driver does.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.protocol.version import __version__
from fedloom.server import device_ports
from fedloom.server.config import ServerConfig
from fedloom.server.context import ServerContext, assemble
from fedloom.server.device_ports import Certificates
from fedloom.server.fleet import last_seen, refusal_log
from fedloom.server.fleet.service import FleetService
from fedloom.server.http import connection_limits
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.replicas.doorbell import Doorbell
from fedloom.server.ledger.replicas.gate_queues import GateLease
from fedloom.server.ledger.replicas.lease_rows import Driver, LeaseRows
from fedloom.server.ledger.store import unavailable
from fedloom.server.metrics import lag
from fedloom.server.metrics.replica import ReplicaState, Serving
from fedloom.server.pki.authority import Authority
from fedloom.server.pki.noise_keys import NoiseKeys
from fedloom.server.pki.signing_key import FOLDER as SIGNING
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.queries.gauges import of_transfers
from fedloom.server.replicas.gate_rounds import GateRounds
from fedloom.server.replicas.key_vault import KeyVault
from fedloom.server.replicas.lease import NO_ANSWER, PATIENCE_S, RENEW_S, end_process
from fedloom.server.replicas.relay import Relay
from fedloom.server.storage.objects import upkeep
from fedloom.server.storage.opening import GATE_SPOOL, open_storage

log = logging.getLogger(__name__)

KEYS_S = 10.0
"""Interval at which a gate looks for new keys in the ledger."""

SWEEP_S = 5.0
"""Interval at which a gate looks for streams to end; the driver tells it of those of revoked
clients."""


class Gate:
    """One gate, over the state folder of a server that does not drive.

    Args:
        state_dir: of the server.
        config: its settings.
        ready: called once it serves devices, with True, and with False when it no longer does.
        state: of the replica, for metrics.

    Attributes:
        serves: whether it serves devices.
        port: the bound port, once it does.
    """

    def __init__(
        self,
        state_dir: Path,
        config: ServerConfig,
        ready: Callable[[bool], None],
        state: ReplicaState,
    ) -> None:
        self._state = state
        self._state_dir = state_dir
        self._config = config
        self._ready = ready
        self._id = ""
        self._stack = AsyncExitStack()
        self.serves = False
        self.port = 0
        self._has_no_peer = asyncio.Event()

    async def serve(self) -> None:
        """Serve devices until cancelled.

        The process ends if the driver has struck this gate out, or if the database does not answer.
        """
        while True:
            self._id, self._stack = secrets.token_hex(8), AsyncExitStack()
            async with self._stack:
                await self._serve()
            log.info("serves no devices until it has begun anew")

    async def _serve(self) -> None:
        """Serve devices until cancelled, or until keys or the driver are others."""
        ledger = await asyncio.to_thread(
            Ledger.in_directory, self._state_dir, self._config.database
        )
        self._stack.callback(ledger.close)
        rows = ledger.lease_rows()
        self._stack.callback(rows.close)
        await self._has_peer(rows)
        await _has_begun(ledger)
        await asyncio.to_thread(rows.join, self._id, socket.gethostname())
        self._state.gate = self._id
        self._stack.push_async_callback(asyncio.to_thread, self._leave, rows)
        ledger.ahead_s = await asyncio.to_thread(rows.ahead_s)
        ledger.fence(GateLease(self._id).check)
        vault = KeyVault(self._state_dir, ledger)
        bell = ledger.doorbell(self._id)
        self._stack.callback(bell.close)
        relay = await self._open(ledger, vault, bell)
        self._notice(True)
        self._stack.callback(self._notice, False)
        self._has_no_peer.clear()
        staying = asyncio.ensure_future(self._stay(rows, relay, bell))
        others = [self._keys_change(vault), self._has_no_peer.wait()]
        waits = [staying, *(asyncio.ensure_future(work) for work in others)]
        for each in waits:
            self._stack.callback(each.cancel)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if staying.done():
            await end_process(staying.result(), lambda: None)

    def _notice(self, serves: bool) -> None:
        self.serves = serves
        self._ready(serves)

    async def _keys_change(self, vault: KeyVault) -> None:
        """Write new signing keys to their file; returns once the authority's have changed."""
        known = await asyncio.to_thread(vault.fetch)
        while True:
            await asyncio.sleep(KEYS_S)
            try:
                if await asyncio.to_thread(vault.fetch) != known:
                    return
            except sa.exc.DBAPIError:
                pass  # `_stay` says so
            except UsageError as error:  # those that it has serve on
                log.error("new keys cannot be read: %s", error)  # noqa: TRY400 - it says it all

    async def _has_peer(self, rows: LeaseRows) -> None:
        """Wait for a driver of this version with gates: it reads what a gate writes."""
        told = False
        while True:
            driver = await asyncio.to_thread(rows.driver)
            if driver is not None and not driver.is_gone:
                if _is_peer(driver):
                    return
                if not told:
                    told = True
                    log.warning(
                        "this server (%s) serves no devices while %s drives with version %s and "
                        "gates = %s: all replicas need the same",
                        __version__, driver.name, driver.version, str(driver.has_gates).lower(),
                    )  # fmt: skip
            await asyncio.sleep(RENEW_S)

    async def _open(self, ledger: Ledger, vault: KeyVault, bell: Doorbell) -> Relay:
        """Open the fleet's port."""
        server, authority = await asyncio.to_thread(self._assemble, ledger, vault)
        self._stack.callback(server.close)
        context, config = server.fleet, self._config
        relay = Relay(context, self._id, bell)
        rounds = GateRounds(context, self._id, relay, bell)
        storage = server.storage
        self._background(lag.keep(context.meters))
        self._background(relay.pass_on())
        self._background(relay.deliver())
        self._background(rounds.keep())
        self._background(device_ports.sweep(context, SWEEP_S))
        self._background(last_seen.keep(context.presence, storage))
        self._background(refusal_log.keep(context.refusals, storage))
        self._background(context.audit_log.keep(config.keep_audit_s))
        if storage.remote is not None:
            cache_bytes = config.store_cache_bytes
            self._background(upkeep.keep(storage.remote, storage.models, cache_bytes, sweeps=False))
        places, _ = connection_limits.places(connection_limits.raise_limit())
        service = FleetService(context, relay, rounds, authority)
        self._state.streams = service.num_streams
        self._stack.callback(setattr, self._state, "streams", None)
        self._state.serving = Serving(context.meters, partial(of_transfers, context))
        self._stack.callback(setattr, self._state, "serving", None)
        certificates = Certificates(authority, config.certificate_names)
        listening, self.port = device_ports.fleet(config, context, service, certificates, places)
        self._stack.push_async_callback(rounds.drain)  # after the port is closed
        await listening.start()
        self._stack.push_async_callback(device_ports.stop, listening, context)
        log.info("serves devices on port %d as a gate", self.port)
        return relay

    def _assemble(self, ledger: Ledger, vault: KeyVault) -> tuple[ServerContext, Authority]:
        state_dir = self._state_dir
        vault.fetch()
        authority = Authority.load(state_dir / "pki", vault.write)
        server = assemble(
            self._config,
            open_storage(state_dir, self._config, ledger, spool=GATE_SPOOL),
            NoiseKeys(state_dir / "noise", vault.write),
            signing=SigningKey.ensure(state_dir / SIGNING, authority.federation, vault.write),
            root_pem=authority.root_pem,
        )
        return server, authority

    async def _stay(self, rows: LeaseRows, relay: Relay, bell: Doorbell) -> str:
        """Renew this gate's row, and follow who drives; returns why that has ended."""
        renewed = time.monotonic()
        while True:
            begun = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    is_there, driver = await asyncio.to_thread(rows.stay, self._id)
                if not is_there:
                    return "the driver has struck this gate out, as it came too late"
                renewed = begun
                if driver is not None and driver.epoch != relay.epoch:
                    if not _is_peer(driver):
                        self._has_no_peer.set()
                    relay.follow(driver.epoch)
            except TimeoutError:
                return NO_ANSWER
            except sa.exc.DBAPIError as error:
                log.warning("cannot renew the gate: %s", unavailable(error))
                if begun - renewed > PATIENCE_S:
                    return NO_ANSWER
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await bell.turned.wait()
            bell.turned.clear()

    def _leave(self, rows: LeaseRows) -> None:
        try:
            rows.leave(self._id)
        except sa.exc.DBAPIError:
            log.info("the driver will miss this gate")

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)


async def _has_begun(ledger: Ledger) -> None:
    """Wait until the first driver of a ledger has claimed its store and made its signing key.

    Each is made once: those of two servers that begin together would replace one another.
    """
    while True:
        names = await asyncio.to_thread(ledger.wrapped_keys)
        if any(name.startswith(f"{SIGNING}/") for name in names):
            return
        await asyncio.sleep(RENEW_S)


def _is_peer(driver: Driver) -> bool:
    return driver.has_gates and driver.version == __version__
