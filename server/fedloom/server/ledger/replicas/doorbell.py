"""Wakes readers of the ledger's queues, by PostgreSQL's NOTIFY; they also read now and then.

A notification is a transaction of its own: one that notifies locks all others that do until its
commit, so none is part of an accept.
"""

import asyncio
import logging
import queue
import select
import threading
import time
from contextlib import suppress

import sqlalchemy as sa

from fedloom.server.ledger.replicas.lease_rows import CHANNEL, IMPATIENT

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Interval at which queues are read while no notification can come."""

QUIET_S = 5.0
"""Interval at which they are read while notifications can come, as one may be lost."""

_PAUSE_S = 0.005
"""Notifications of this time are sent together."""


class Doorbell:
    """Notifications of one process.

    Args:
        url: of the database.
        own: channel by which this process is woken; at most 63 bytes.

    Attributes:
        rung: set when a queue of this process may have messages.
        turned: set when another server may drive.
    """

    def __init__(self, url: sa.URL, own: str) -> None:
        self._engine = sa.create_engine(
            url, connect_args=IMPATIENT, pool_pre_ping=True, isolation_level="AUTOCOMMIT"
        )
        self._own = own
        self._loop = asyncio.get_running_loop()
        self._due: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = False
        self.rung, self.turned = asyncio.Event(), asyncio.Event()
        self._listener = threading.Thread(target=self._listen, name="doorbell", daemon=True)
        self._listener.start()
        threading.Thread(target=self._notify, name="doorbell", daemon=True).start()

    def ring(self, channel: str) -> None:
        """Wake the process that listens on a channel; may be lost."""
        self._due.put(channel)

    def close(self) -> None:
        """End the threads, soon."""
        self._closed = True
        self._due.put(self._own)  # wakes the thread that listens
        self._due.put("")

    def _listen(self) -> None:
        while not self._closed:
            try:
                self._wait_for_notifications()
            except Exception as error:  # noqa: BLE001 - of SQLAlchemy or of the database's driver
                log.warning("without notifications, queues are read each second: %r", error)
            self._wake(self.rung)
            if not self._closed:
                time.sleep(POLL_S)

    def _wait_for_notifications(self) -> None:
        with self._engine.connect() as connection:
            listening = connection.connection.driver_connection
            for channel in (self._own, CHANNEL):
                connection.exec_driver_sql(f'LISTEN "{channel}"')
            self._wake(self.turned)  # for what came before
            incoming = select.poll()  # psycopg would wake up ten times a second
            incoming.register(listening, select.POLLIN)  # type: ignore[arg-type]
            while not self._closed:
                self._wake(self.rung)
                incoming.poll(1000 * QUIET_S)
                for each in listening.notifies(timeout=0.0):  # type: ignore[union-attr]
                    if each.channel == CHANNEL:
                        self._wake(self.turned)

    def _wake(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(event.set)

    def _notify(self) -> None:
        while channel := self._due.get():
            channels = {channel}
            time.sleep(_PAUSE_S)
            while not self._due.empty():
                channels.add(self._due.get())
            with suppress(sa.exc.DBAPIError), self._engine.connect() as connection:
                for each in filter(None, channels):
                    connection.execute(sa.select(sa.func.pg_notify(each, "")))
            if "" in channels:
                break
        self._listener.join()
        self._engine.dispose()  # once neither thread has a connection
