"""A server's turn to drive: waits for the lease, renews it, and notices its loss.

The loss is noticed in two ways: another server's epoch is in the ledger, or the database has not
answered for `PATIENCE_S`. Whatever this server would still commit is refused by the ledger, see
`fedloom.server.ledger.replicas.lease_rows`.
"""

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.version import __version__
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.replicas.doorbell import Doorbell
from fedloom.server.ledger.replicas.lease_rows import (
    CHANNEL,
    LEASE_S,
    Driver,
    Lease,
    LeaseLostError,
    LeaseRows,
)
from fedloom.server.ledger.store import unavailable
from fedloom.server.metrics.replica import ReplicaState

log = logging.getLogger(__name__)

RENEW_S = 1.0
POLL_S = 0.5
"""Interval at which a server that waits looks at the lease, without a notification."""

_MARGIN_S = 0.01
"""After the moment at which a lease expires."""

PATIENCE_S = 10.0
"""Time without an answer of the database after which a driver ends: its devices may reach another
server that has one."""


NO_ANSWER = f"the ledger has not answered for {PATIENCE_S:.0f} s"

NOTE_S = 2.0
"""Time to write why a server ends."""


async def end_process(reason: str, note: Callable[[], None]) -> NoReturn:
    """End this process at once: nothing that it still holds counts.

    Args:
        reason: for the log.
        note: writes the reason elsewhere, in a thread, if there is time.
    """
    log.critical("this server ends: %s. Started again, it is on standby.", reason)
    try:
        async with asyncio.timeout(NOTE_S):
            await asyncio.to_thread(note)
    finally:
        logging.shutdown()
        os._exit(UnavailableError.exit_code)


class ReplicaTurn:
    """The turn of one server of several.

    Args:
        ledger: which this server may write to only during its turn.
        gates: whether it takes in the devices of gates.

    Attributes:
        lost: done with the reason when the turn has ended, other than by `release`.
        state: who drives, for metrics.
    """

    def __init__(self, ledger: Ledger, *, gates: bool = False) -> None:
        self._ledger = ledger
        self._rows: LeaseRows = ledger.lease_rows()
        self._name = socket.gethostname()
        self._holder = f"{self._name}.{secrets.token_hex(8)}"
        self._gates = gates
        self._lease: Lease | None = None
        self._changing = threading.Lock()  # the lease's row
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.state = ReplicaState(name=self._name)
        ledger.fence(self._check)

    def check_database(self) -> None:
        """Check that the database keeps what it has committed. Blocks.

        Raises:
            UsageError: it may lose it.
        """
        self._rows.check_durable()

    async def wait(self, waiting: Callable[[str], None], check: Callable[[], None]) -> None:
        """Wait until this server may drive.

        Args:
            waiting: called with the name of the machine that drives, whenever it changes.
            check: called before each attempt to drive; raises a `UsageError` while it must not.
        """
        driven_by, why_not = None, ""
        # Only psycopg brings notifications; without gates another driver may be used.
        bell = self._ledger.doorbell(CHANNEL) if self._gates else None
        while True:
            try:
                taken, found = await asyncio.to_thread(self._take, check)
                why_not = ""
            except UsageError as error:
                taken = found = None
                if str(error) != why_not:
                    why_not = str(error)
                    log.error("this server cannot drive: %s", error)  # noqa: TRY400 - it says it all
            except sa.exc.DBAPIError as error:
                log.warning("waiting for the ledger: %s", unavailable(error))
                taken = found = None
            if taken is not None:
                break
            if found is not None:
                self.state.epoch = found.epoch
            if found is not None and found.holder != driven_by:
                driven_by = found.holder
                log.info("on standby: %s drives (epoch %d)", found.name, found.epoch)
                waiting(found.name)
            await _look_again(bell, found)
        self._lease, before = taken
        if bell is not None:
            bell.close()
        self._ledger.ahead_s = await asyncio.to_thread(self._rows.ahead_s)
        self.state.epoch, self.state.drives = self._lease.epoch, True
        detail = {"epoch": self._lease.epoch, "holder": self._holder}
        if before is not None:
            detail |= {"before": before.holder}
        await asyncio.to_thread(self._note, "driver.begin", detail)
        log.info("driving in epoch %d", self._lease.epoch)

    def _take(
        self, check: Callable[[], None]
    ) -> tuple[tuple[Lease, Driver | None] | None, Driver | None]:
        """Take the lease if it is free and the check passes; else also who drives. Blocks."""
        found = self._rows.driver()
        if found is not None and not found.is_gone:
            return None, found
        check()
        return self._rows.take(self._holder, self._name, gates=self._gates), found

    @property
    def epoch(self) -> int:
        """The number of this turn."""
        assert self._lease is not None
        return self._lease.epoch

    async def keep(self) -> None:
        """Renew the lease until it is lost."""
        renewed = time.monotonic()
        while not self.lost.done():
            await asyncio.sleep(RENEW_S)
            begun = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    if not await asyncio.to_thread(self._renew):
                        self._end("another server drives")
                renewed = begun
            except TimeoutError:
                self._end(NO_ANSWER)
            except sa.exc.DBAPIError as error:
                log.warning("cannot renew the lease: %s", unavailable(error))
                if begun - renewed > PATIENCE_S:
                    self._end(NO_ANSWER)

    def _renew(self) -> bool:
        """Renew the lease, unless it was released; False if another server drives."""
        with self._changing:
            return self._lease is None or self._rows.renew(self._lease)

    def release(self) -> None:
        """Let another server drive at once, if this one does; it commits nothing afterwards."""
        self.state.drives = False
        with self._changing:
            lease, self._lease = self._lease, None
            if lease is not None:
                with suppress(sa.exc.DBAPIError):  # it expires
                    self._rows.release(lease)
                    log.info("no longer drives")
        self._rows.close()

    def note_loss(self) -> None:
        """Write into the audit trail that this server's turn has ended, if the ledger answers."""
        assert self._lease is not None
        detail = {"epoch": self._lease.epoch, "holder": self._holder, "reason": self.lost.result()}
        try:
            self._note("driver.end", detail)
        except sa.exc.DBAPIError as error:
            log.warning("the audit trail lacks the end of this turn: %s", unavailable(error))

    def _check(self, connection: sa.Connection) -> None:
        """Refuse what a server commits outside its turn."""
        lease = self._lease
        if lease is None:
            raise LeaseLostError("Expected the turn to drive before a change of the ledger.")
        try:
            lease.check(connection)
        except LeaseLostError:
            loop = self.lost.get_loop()
            loop.call_soon_threadsafe(self._end, "a late commit was refused: another server drives")
            raise

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    def _note(self, action: str, detail: dict[str, object]) -> None:
        self._rows.trail().append("fedloom", "server", action, self._name, detail)


async def _look_again(bell: Doorbell | None, found: Driver | None) -> None:
    """Wait until another server may have ceased to drive."""
    left_s = POLL_S if found is None else LEASE_S - found.age_s
    pause_s = min(max(left_s, 0.0), LEASE_S) + _MARGIN_S
    if bell is None or found is None or found.version != __version__:  # which may not notify
        pause_s = min(POLL_S, pause_s)
    if bell is None:
        await asyncio.sleep(pause_s)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await bell.turned.wait()
    bell.turned.clear()
