"""Writes the audit trail: durably, before each action, and in batches for unauthenticated peers."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol.errors import UnavailableError, printable
from fedloom.server.background_tasks import to_the_end
from fedloom.server.event_hub import Hub
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import Entry, encoded, new_entry
from fedloom.server.threads import Thread

log = logging.getLogger(__name__)

LIMIT_PER_HOUR = 600
"""Most entries per hour of one action, such as a failed login, by unauthenticated peers."""

DAY_S = 24 * 3600.0

PRUNE_EVERY_S = 3600.0
"""Interval at which old entries are removed."""

LIMIT_PER_BATCH = 10
"""Most of these in one transaction; the last one holds the number of the others as `more`."""

PACE_S = 1.0
"""Interval of these transactions; a killed server loses the entries of the last one."""


class AuditLog:
    """The audit trail, written in the ledger's thread.

    Args:
        ledger: holds the trail.
        in_ledger: its thread.
        live: notified of each entry.
    """

    def __init__(self, ledger: Ledger, in_ledger: Thread, live: Hub) -> None:
        self._ledger = ledger
        self._in_ledger = in_ledger
        self._live = live
        self._limited: dict[str, tuple[float, int]] = {}
        self._noted: list[Entry] = []
        self._more: Counter[str] = Counter()

    async def record(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        """Write an entry durably; the arguments are those of `Trail.append`."""
        await self._write([new_entry(who, how, action, subject, detail)])

    async def _write(self, entries: list[Entry]) -> None:
        """Write what is noted and then these entries, in one transaction."""
        noted = self._take()
        entries = [*noted, *entries]
        if not entries:
            return
        try:
            heads = await self._in_ledger(self._ledger.trail.append_all, entries)
        except Exception:
            self._noted = noted + self._noted
            raise
        for head, entry in zip(heads, entries, strict=True):
            # A log kept out of reach of the ledger's writer anchors the chain.
            what = [entry[name] for name in ("who", "how", "action", "subject")]
            log.info("audit %d: %s (%s) %s %s [%s]", head.id, *what, head.hash)
        self._live.changed("audit")

    def _take(self) -> list[Entry]:
        """Remove and return what is noted; the last entry of an action numbers those left out."""
        noted, self._noted = self._noted, []
        for entry in reversed(noted):
            if number := self._more.pop(entry["action"], 0):
                detail = json.loads(entry["detail"])
                number += detail.get("more", 0)  # of an attempt to write it that failed
                entry["detail"] = encoded({**detail, "more": number})
        return noted

    @asynccontextmanager
    async def around(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> AsyncIterator[None]:
        """Record an action before it runs, and its failure if it fails."""
        await self.record(who, how, action, subject, detail)
        try:
            yield
        except Exception as error:
            with suppress(Exception):  # a failure of the trail must not hide the error
                failure = {"error": printable(str(error))}
                await self.record(who, how, f"{action}.failed", subject, failure)
            raise

    def note(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        """Note an action of an unauthenticated peer, to be written within `PACE_S`.

        At most `LIMIT_PER_HOUR` entries are written of each action, and `LIMIT_PER_BATCH` at once:
        no such peer costs a transaction. The arguments are those of `new_entry`.
        """
        if sum(entry["action"] == action for entry in self._noted) >= LIMIT_PER_BATCH:
            self._more[action] += 1
            return
        hour = time.time() // 3600
        known, count = self._limited.get(action, (0.0, 0))
        count = count + 1 if known == hour else 1
        self._limited[action] = hour, count
        if count <= LIMIT_PER_HOUR:
            last = {"last_of_this_hour": True} if count == LIMIT_PER_HOUR else {}
            self._noted.append(new_entry(who, how, action, subject, {**detail, **last}))

    async def store(self) -> None:
        """Write what is noted; after an error of the database it stays noted."""
        try:
            await to_the_end(self._write([]))
        except (SQLAlchemyError, UnavailableError) as error:  # such as a full disk
            log.warning("the audit trail lacks failed attempts: %s", type(error).__name__)

    async def prune(self, keep_s: float) -> None:
        """Remove entries older than `keep_s` seconds; 0 keeps all."""
        if not keep_s:
            return
        try:
            done = await self._in_ledger(self._ledger.trail.prune, time.time() - keep_s)
        except (SQLAlchemyError, UnavailableError) as error:
            log.warning("old entries of the audit trail were not removed: %s", type(error).__name__)
            return
        if done:
            log.info("removed %d entries of the audit trail after %.0f days", done, keep_s / DAY_S)
            self._live.changed("audit")

    async def keep(self, keep_s: float) -> None:
        """Write what is noted every `PACE_S` seconds, and prune hourly, until cancelled."""
        prune_at = time.monotonic()
        while True:
            await asyncio.sleep(PACE_S)
            await self.store()
            if time.monotonic() >= prune_at:
                prune_at = time.monotonic() + PRUNE_EVERY_S
                await self.prune(keep_s)
