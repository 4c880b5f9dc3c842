"""Writes the audit trail: durably, before each action, and limited for unauthenticated peers."""

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fedloom.protocol.errors import printable
from fedloom.server.event_hub import Hub
from fedloom.server.ledger import Ledger
from fedloom.server.threads import Thread

log = logging.getLogger(__name__)

LIMIT_PER_HOUR = 600
"""Most entries per hour of one action, such as a failed login, by unauthenticated peers."""


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

    async def record(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        """Write an entry durably; the arguments are those of `Trail.append`."""
        append = self._ledger.trail.append
        head = await self._in_ledger(append, who, how, action, subject, detail)
        # A log kept out of reach of the ledger's writer anchors the chain.
        log.info("audit %d: %s (%s) %s %s [%s]", head.id, who, how, action, subject, head.hash)
        self._live.changed("audit")

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

    async def record_limited(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        """Like `record`, at most `LIMIT_PER_HOUR` entries, for actions of unauthenticated peers."""
        hour = time.time() // 3600
        known, count = self._limited.get(action, (0.0, 0))
        count = count + 1 if known == hour else 1
        self._limited[action] = hour, count
        if count <= LIMIT_PER_HOUR:
            last = {"last_of_this_hour": True} if count == LIMIT_PER_HOUR else {}
            await self.record(who, how, action, subject, {**detail, **last})
