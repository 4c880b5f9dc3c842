"""The context of storage: the ledger, the files, and their threads."""

import os
from dataclasses import dataclass, field

from fedloom.server.ledger import Ledger
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.objects.remote import RemoteStorage
from fedloom.server.storage.spool import Spool
from fedloom.server.threads import Thread

FOLD_HELPERS = min(4, os.cpu_count() or 1)
"""More threads would wait for memory."""


@dataclass(slots=True, kw_only=True)
class StorageContext:
    """The ledger and the files of a server.

    Attributes:
        in_ledger: one thread for the ledger's methods, so its transactions are sequential.
        in_reader: threads for the ledger reads of pages and routes, so that they delay no round.
        in_fold: one thread for calls that change a round's sum.
        in_fold_helpers: threads that `in_fold` waits for.
        in_disk: threads for syncs and file copies.
        remote: the object store of models and updates; None where they are in files.
    """

    ledger: Ledger
    models: ModelStore
    spool: Spool
    in_ledger: Thread = field(default_factory=lambda: Thread("ledger"))
    in_reader: Thread = field(default_factory=lambda: Thread("reader", 2))
    in_fold: Thread = field(default_factory=lambda: Thread("fold"))
    in_fold_helpers: Thread = field(default_factory=lambda: Thread("fold-helper", FOLD_HELPERS))
    in_disk: Thread = field(default_factory=lambda: Thread("disk", 4))
    remote: RemoteStorage | None = None

    @property
    def in_bodies(self) -> Thread:
        """Threads that make bodies of updates durable."""
        return self.in_disk if self.remote is None else self.remote.in_store

    async def fetch(self, file: str, *, if_kept: bool = False) -> None:
        """Make sure that a file of the spool is on this disk; with `if_kept`, if there is one."""
        if self.remote is not None:
            fetch = self.spool.fetch_kept if if_kept else self.spool.fetch
            await self.remote.in_store(fetch, file)

    def close(self) -> None:
        """End the threads, then close the database."""
        if self.remote is not None:
            self.remote.objects.close()
        for thread in (self.in_reader, self.in_fold, self.in_fold_helpers, self.in_disk):
            thread.close()
        if self.remote is not None:
            self.remote.close()
        self.in_ledger.close()
        self.ledger.close()
