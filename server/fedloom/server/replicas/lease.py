"""A server's turn to drive: waits for the lease, renews it, and notices its loss.

The loss is noticed in two ways: another server's epoch is in the ledger, or the database has not
answered for `PATIENCE_S`. Whatever this server would still commit is refused by the ledger, see
`fedloom.server.ledger.replicas.lease_rows`.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable

import sqlalchemy as sa

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.replicas.lease_rows import Lease, LeaseLostError, LeaseRows
from fedloom.server.ledger.store import unavailable

log = logging.getLogger(__name__)

RENEW_S = 1.0
POLL_S = 0.5
"""Interval at which a server that waits looks at the lease."""

PATIENCE_S = 10.0
"""Time without an answer of the database after which a driver ends: its devices may reach another
server that has one."""


class ReplicaTurn:
    """The turn of one server of several.

    Args:
        ledger: which this server may write to only during its turn.

    Attributes:
        lost: done with the reason when the turn has ended, other than by `release`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows: LeaseRows = ledger.lease_rows()
        self._name = socket.gethostname()
        self._holder = f"{self._name}.{secrets.token_hex(8)}"
        self._lease: Lease | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ledger.fence(self._check)

    def check_database(self) -> None:
        """Check that the database keeps what it has committed. Blocks.

        Raises:
            UsageError: it may lose it.
        """
        self._rows.check_durable()

    async def wait(self, waiting: Callable[[str], None]) -> None:
        """Wait until this server may drive.

        Args:
            waiting: called with the name of the machine that drives, whenever it changes.
        """
        driven_by = None
        while True:
            try:
                taken = await asyncio.to_thread(self._rows.take, self._holder, self._name)
                found = None if taken else await asyncio.to_thread(self._rows.driver)
            except sa.exc.DBAPIError as error:
                log.warning("waiting for the ledger: %s", unavailable(error))
                taken = found = None
            if taken is not None:
                break
            if found is not None and found.holder != driven_by:
                driven_by = found.holder
                log.info("on standby: %s drives (epoch %d)", found.name, found.epoch)
                waiting(found.name)
            await asyncio.sleep(POLL_S)
        self._lease, before = taken
        detail = {"epoch": self._lease.epoch, "holder": self._holder}
        if before is not None:
            detail |= {"before": before.holder}
        await asyncio.to_thread(self._note, "driver.begin", detail)
        log.info("driving in epoch %d", self._lease.epoch)

    async def keep(self) -> None:
        """Renew the lease until it is lost."""
        assert self._lease is not None
        renewed = time.monotonic()
        while not self.lost.done():
            await asyncio.sleep(RENEW_S)
            begun = time.monotonic()
            try:
                if not await asyncio.to_thread(self._rows.renew, self._lease):
                    self._end("another server drives")
                renewed = begun
            except sa.exc.DBAPIError as error:
                log.warning("cannot renew the lease: %s", unavailable(error))
                if begun - renewed > PATIENCE_S:
                    self._end(f"the ledger has not answered for {PATIENCE_S:.0f} s")

    def release(self) -> None:
        """Let another server drive at once, if this one does; the server has stopped."""
        try:
            if self._lease is not None:
                self._rows.release(self._lease)
        except sa.exc.DBAPIError:
            pass  # it expires
        finally:
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
        if self._lease is None:
            raise LeaseLostError("Expected the turn to drive before a change of the ledger.")
        try:
            self._lease.check(connection)
        except LeaseLostError:
            loop = self.lost.get_loop()
            loop.call_soon_threadsafe(self._end, "a late commit was refused: another server drives")
            raise

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)

    def _note(self, action: str, detail: dict[str, object]) -> None:
        self._rows.trail().append("fedloom", "server", action, self._name, detail)
