"""Keeps the replicas of a ledger still while it is moved: the move holds the lease of the driver.

So no server drives, and no gate serves, which needs a driver with gates. When the ledger was moved
to another database, the lease of the old one is never free again: a replica that was forgotten
would else drive there, beside the server that was moved.
"""

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.replicas.lease_rows import Lease, LeaseRows

log = logging.getLogger(__name__)

RENEW_S = 1.0
MOVING = "fedloom server move"
MOVED = "the server of another database, to which this ledger was moved,"


class Stillness:
    """The lease of a move, renewed in a thread.

    Args:
        rows: of the ledger that is moved.
        lease: that the move has taken.
    """

    def __init__(self, rows: LeaseRows, lease: Lease) -> None:
        self._rows = rows
        self._lease = lease
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_S):
            try:
                self._rows.renew(self._lease)
            except sa.exc.DBAPIError as error:  # `check` tells whether the lease was lost
                log.warning("cannot renew the lease of the move: %s", error.orig)

    def check(self) -> None:
        """Check that no server has driven and no gate has served since the lease was taken.

        Raises:
            UnavailableError: one may have.
        """
        if not self._rows.renew(self._lease) or self._rows.has_gates():
            raise UnavailableError(
                "Expected that all servers stand still while their ledger is moved, got one that "
                "was started: stop it, and move again. Nothing has changed."
            )

    def end(self, *, moved: bool) -> None:
        """Free the lease; after a move to another database, for nobody."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        if moved:
            self._rows.retire(self._lease, MOVED)
        else:
            self._rows.release(self._lease)


@contextmanager
def standing_still(ledger: Ledger) -> Iterator[Stillness | None]:
    """Hold the lease of a ledger of replicas; None for a ledger of one server.

    Raises:
        UsageError: a server drives.
    """
    if not ledger.wrapped_keys():
        yield None
        return
    rows = ledger.lease_rows()
    try:
        taken = rows.take(f"move.{secrets.token_hex(8)}", MOVING)
        if taken is None:
            driver = rows.driver()
            name = "another one" if driver is None else driver.name
            raise UsageError(f"Expected that no server drives, got {name}: stop it first.")
        rows.end_gates()
        still = Stillness(rows, taken[0])
        try:
            yield still
        except BaseException:
            still.end(moved=False)
            raise
    finally:
        rows.close()
