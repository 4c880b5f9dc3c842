"""What every part of a running server shares: storage, sessions, and the threads that block.

Blocking work leaves the event loop by one of three doors: the ledger's thread, which makes its
transactions one sequence; the fold's thread, which owns every sum; and a few threads for syncs.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from fedloom.protocol.errors import printable
from fedloom.protocol.tracing import Tracer
from fedloom.protocol.transport.chunk_size import Chunks
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.config import ServerConfig
from fedloom.server.event_hub import Hub
from fedloom.server.fleet.last_seen import Presence
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.fleet.transfer_slots import Lanes
from fedloom.server.ledger import Ledger
from fedloom.server.metrics.log_buffer import LogRing
from fedloom.server.metrics.meters import Meters
from fedloom.server.pki.noise_keys import NoiseKeys
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.rounds.member_records import Records
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.spool import Spool

log = logging.getLogger(__name__)

STRANGERS_PER_HOUR = 600
"""Entries of the audit trail of one kind, such as failed logins, that strangers cause."""

P = ParamSpec("P")
T = TypeVar("T")


class Thread:
    """A pool of threads that coroutines hand blocking calls to.

    Attributes:
        observe: told how long each call took, with the wait for its turn, seconds.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self.observe: Callable[[float], None] | None = None
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._counting = threading.Lock()
        self._given = self._done = 0

    @property
    def pending(self) -> int:
        """Calls that wait or are being done."""
        return self._given - self._done

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` in the pool. It runs to its end even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        begun = time.perf_counter()

        def work() -> T:
            try:
                return call(*args, **kwargs)
            finally:
                with self._counting:
                    self._done += 1
                if self.observe is not None:
                    self.observe(time.perf_counter() - begun)

        working = loop.run_in_executor(self._pool, work)
        with self._counting:
            self._given += 1
        return await working

    def close(self) -> None:
        """Finish what has begun and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class World:
    """The parts of a server that outlive any run.

    Attributes:
        signing: what clients hear is signed by; None on plaintext loopback.
        in_ledger: calls the ledger's methods; one at a time, in order.
        in_reader: calls of the ledger that only read, for whoever looks: they delay no round.
        in_fold: calls that own a sum; one at a time.
        in_disk: syncs and file copies.
        in_access: who an operator is; beside the ledger's thread, so that no round waits for it.
        in_passwords: their hashes; one at a time, as each takes 64 MiB.
        live: whom to tell what has changed.
        log_ring: the last lines of the log.
        records: what the members of open rounds do.
        presence: who came and went, and is not stored yet.
        tracer: of what takes how long in a round.
        meters: what is counted for Prometheus.
        uploads: places for updates.
        downloads: places for models.
    """

    config: ServerConfig
    ledger: Ledger
    models: ModelStore
    spool: Spool
    noise: NoiseKeys
    signing: SigningKey | None = None
    live: Hub = field(default_factory=Hub)
    log_ring: LogRing = field(init=False)
    fleet: Fleet = field(default_factory=Fleet)
    records: Records = field(default_factory=Records)
    presence: Presence = field(default_factory=Presence)
    tracer: Tracer = field(default_factory=Tracer)
    meters: Meters = field(default_factory=Meters)
    uploads: Lanes = field(init=False)
    downloads: Lanes = field(init=False)
    in_ledger: Thread = field(default_factory=lambda: Thread("ledger"))
    in_reader: Thread = field(default_factory=lambda: Thread("reader", 2))
    in_fold: Thread = field(default_factory=lambda: Thread("fold"))
    in_disk: Thread = field(default_factory=lambda: Thread("disk", 4))
    in_access: Thread = field(default_factory=lambda: Thread("access"))
    in_passwords: Thread = field(default_factory=lambda: Thread("passwords"))
    _strangers: dict[str, tuple[float, int]] = field(default_factory=dict)

    async def audit(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        """Write an entry of the audit trail, durably; arguments as `Trail.append` has them."""
        head = await self.in_ledger(self.ledger.trail.append, who, how, action, subject, detail)
        # The log may be kept where the ledger's writer cannot reach: it anchors the chain.
        log.info("audit %d: %s (%s) %s %s [%s]", head.id, who, how, action, subject, head.hash)
        self.live.changed("audit")

    @asynccontextmanager
    async def audited(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> AsyncIterator[None]:
        """Write into the trail what is about to be done, and after it if it was not done."""
        await self.audit(who, how, action, subject, detail)
        try:
            yield
        except Exception as error:
            with suppress(Exception):  # of the trail's own: the caller is told of the first
                told = {"error": printable(str(error))}
                await self.audit(who, how, f"{action}.failed", subject, told)
            raise

    async def audit_stranger(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        """As `audit`, for what anybody can cause: no flood of it fills the disk."""
        hour = time.time() // 3600
        known, count = self._strangers.get(action, (0.0, 0))
        count = count + 1 if known == hour else 1
        self._strangers[action] = hour, count
        if count <= STRANGERS_PER_HOUR:
            last = {"last_of_this_hour": True} if count == STRANGERS_PER_HOUR else {}
            await self.audit(who, how, action, subject, {**detail, **last})

    def __post_init__(self) -> None:
        """Let watchers know who comes and goes, and what is logged; have the ledger timed."""
        self.fleet.live = self.live
        self.log_ring = LogRing(self.live)
        self.in_ledger.observe = self.meters.ledger_s.observe
        places, chunks = self.config.max_fast_transfers, Chunks(self.config.chunk_bytes)
        self.uploads, self.downloads = Lanes(places), Lanes(places, chunks=chunks)

    def offer(self, client: str, task: fleet_pb2.Task) -> fleet_pb2.ServerMessage:
        """A task as it travels to a client."""
        if self.signing is None:
            return fleet_pb2.ServerMessage(offer=task)
        return self.signing.offer(client, task)

    def close(self) -> None:
        """Let everything go, in order."""
        threads = (
            self.in_passwords, self.in_access, self.in_reader,
            self.in_fold, self.in_disk, self.in_ledger,
        )  # fmt: skip
        for thread in threads:
            thread.close()
        self.ledger.close()
