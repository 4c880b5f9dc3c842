"""Records when clients connected and disconnected, with their version and labels.

They are stored in one transaction every `PACE_S` seconds, so that accepts do not wait behind a
thousand clients that reconnect. A killed server loses the records of the last `PACE_S` seconds.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol.errors import printable
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.directory import Seen
from fedloom.server.storage.context import StorageContext

log = logging.getLogger(__name__)

PACE_S = 2.0
"""Interval of the transactions."""

MAX_LABELS = 32
MAX_TEXT = 120
"""Characters of a version, of a label's name and of its value."""


def labels_of(given: Mapping[str, str]) -> dict[str, str]:
    """Labels as they are stored: at most `MAX_LABELS`, short, printable.

    >>> labels_of({"site": "ward 3", "": "nothing"})
    {'site': 'ward 3'}
    """
    named = sorted((printable(k, MAX_TEXT), printable(v, MAX_TEXT)) for k, v in given.items())
    return dict([pair for pair in named if pair[0]][:MAX_LABELS])


class Presence:
    """Connects and disconnects that are not stored yet."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    def came(self, client: str, hello: fleet_pb2.Hello) -> None:
        """A client has connected."""
        self._seen[client] = Seen(
            at=time.time(),
            version=printable(hello.sdk_version, MAX_TEXT),
            labels=labels_of(hello.labels),
            due_at=None if hello.check_in else 0.0,
        )

    def left(self, client: str) -> None:
        """A client has disconnected."""
        self._note(client)

    def told(self, client: str, due_at: float) -> None:
        """A client has been told when to check in next, in seconds since the epoch."""
        self._note(client, due_at=due_at)

    def _note(self, client: str, **changes: Any) -> None:
        known = self._seen.get(client, Seen(at=0.0))
        self._seen[client] = replace(known, at=time.time(), **changes)

    def take(self) -> dict[str, Seen]:
        """Return what is not stored yet and forget it."""
        seen, self._seen = self._seen, {}
        return seen


async def store(presence: Presence, storage: StorageContext) -> None:
    """Store which clients connected and disconnected."""
    if seen := presence.take():
        try:
            await storage.in_ledger(storage.ledger.saw, seen)
        except SQLAlchemyError as error:  # such as a full disk; the records are dropped
            log.warning("last-seen times were not stored: %s", type(error).__name__)


async def keep(presence: Presence, storage: StorageContext) -> None:
    """Store them every `PACE_S` seconds until cancelled."""
    try:
        while True:
            await asyncio.sleep(PACE_S)
            await store(presence, storage)
    finally:
        await store(presence, storage)
