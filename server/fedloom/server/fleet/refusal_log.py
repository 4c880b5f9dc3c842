"""Counts refused calls, and stores them in batches: no refused call costs a transaction.

Refusals of one client for one round with one code are one row, with their number and the latest
message. Rows are written in one transaction every `PACE_S` seconds, so a killed server loses the
refusals of the last `PACE_S` seconds; one that stops in order loses none.

Invariants: the numbers of all rows add up to the refusals: by code exactly, and by client while no
more than `MAX_ROWS` rows begin within `WINDOW_S`. A peer cannot fill the ledger: it begins at most
`PER_CLIENT` rows in `WINDOW_S` and one more for each code.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol.errors import Refusal
from fedloom.server.background_tasks import to_the_end
from fedloom.server.event_hub import Hub
from fedloom.server.ledger.rows import Refused
from fedloom.server.storage.context import StorageContext

log = logging.getLogger(__name__)

PACE_S = 1.0
"""Interval of the transactions."""

WINDOW_S = 60.0
"""Time in which equal refusals are one row."""

PER_CLIENT = 32
"""Rows with their run and round that one client begins within `WINDOW_S`."""

MAX_ROWS = 1024
"""Rows with a client that begin within `WINDOW_S`."""

Key = tuple[str, str, int, str]
"""Client, run, round and code."""


@dataclass(slots=True)
class _Entry:
    """A row, as it is or will be in the ledger."""

    row: Refused
    id: int | None = None
    is_new: bool = True


class RefusalLog:
    """Refusals, and those that are not stored yet."""

    def __init__(self, live: Hub) -> None:
        self._live = live
        self._entries: dict[Key, _Entry] = {}
        self._begun: Counter[str] = Counter()
        self._since = time.monotonic()
        self._storing = asyncio.Lock()

    def add(self, client: str, run: str, number: int, refusal: Refusal) -> None:
        """Count a refusal.

        Args:
            client: refused; empty for an unauthenticated peer.
            run: of its call; empty if the call concerned none.
            number: of the round; 0 if the call concerned none.
            refusal: as sent to the peer.
        """
        key = self._key(client, run, number, refusal)
        entry = self._entries.get(key)
        row = Refused(
            at=time.time(), client=key[0], run=key[1], round=key[2], code=refusal.code,
            message=str(refusal), detail=refusal.detail,
            times=1 if entry is None else entry.row.times + 1,
        )  # fmt: skip
        if entry is None:
            self._begun[client] += 1
            self._entries[key] = _Entry(row)
        else:
            entry.row, entry.is_new = row, True

    def _key(self, client: str, run: str, number: int, refusal: Refusal) -> Key:
        key = (client, run, number, refusal.code.value)
        if key in self._entries:
            return key
        if len(self._entries) >= MAX_ROWS:
            return ("", "", 0, refusal.code.value)
        return key if self._begun[client] < PER_CLIENT else (client, "", 0, refusal.code.value)

    async def store(self, storage: StorageContext) -> None:
        """Store what is new, in one transaction; after an error of the database it stays new."""
        await to_the_end(self._store(storage))

    async def _store(self, storage: StorageContext) -> None:
        async with self._storing:
            new = [(entry, entry.row) for entry in self._entries.values() if entry.is_new]
            if new:
                await self._put(sorted(new, key=lambda pair: pair[1].at), storage)
            if time.monotonic() - self._since > WINDOW_S:
                self._since = time.monotonic()
                self._begun.clear()
                self._entries = {key: e for key, e in self._entries.items() if e.is_new}

    async def _put(self, new: list[tuple[_Entry, Refused]], storage: StorageContext) -> None:
        rows = [(entry.id, row) for entry, row in new]
        try:
            ids = await storage.in_ledger(storage.ledger.put_refusals, rows)
        except SQLAlchemyError as error:  # such as a full disk
            log.warning("refusals are not in the ledger yet: %s", type(error).__name__)
            return
        for (entry, row), number in zip(new, ids, strict=True):
            entry.id, entry.is_new = number, entry.row is not row
        for run in {row.run for _, row in new}:
            self._live.changed("refusals", run)

    def unstored(self) -> list[tuple[int | None, Refused]]:
        """What is new: each with the id of the row that it will replace, the latest first."""
        new = [(entry.id, entry.row) for entry in self._entries.values() if entry.is_new]
        return sorted(new, key=lambda pair: pair[1].at, reverse=True)


async def keep(refusals: RefusalLog, storage: StorageContext) -> None:
    """Store refusals every `PACE_S` seconds until cancelled."""
    while True:
        await asyncio.sleep(PACE_S)
        await refusals.store(storage)
