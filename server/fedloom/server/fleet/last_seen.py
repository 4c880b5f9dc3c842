"""When clients were last here, and what they said of themselves: noted at once, stored together.

A thousand clients that come back after a restart are one transaction every `PACE_S` seconds, not a
thousand: accepts do not wait behind them. A server that is killed loses the last moments of this.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol.errors import printable
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.directory import Seen
from fedloom.server.storage.context import StorageContext

log = logging.getLogger(__name__)

PACE_S = 2.0
"""Between two transactions."""

MAX_LABELS = 32
MAX_TEXT = 120
"""Characters of a version, of a label's name and of its value."""


def labels_of(given: Mapping[str, str]) -> dict[str, str]:
    """Labels as they are kept: few, short, printable.

    >>> labels_of({"site": "ward 3", "": "nothing"})
    {'site': 'ward 3'}
    """
    named = sorted((printable(k, MAX_TEXT), printable(v, MAX_TEXT)) for k, v in given.items())
    return dict([pair for pair in named if pair[0]][:MAX_LABELS])


class Presence:
    """What is to be stored of those who came and went."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    def came(self, client: str, hello: fleet_pb2.Hello) -> None:
        """A client has connected, and says what it is."""
        version = printable(hello.sdk_version, MAX_TEXT)
        self._seen[client] = Seen(at=time.time(), version=version, labels=labels_of(hello.labels))

    def left(self, client: str) -> None:
        """A client has gone."""
        known = self._seen.get(client)
        version, labels = (known.version, known.labels) if known else (None, None)
        self._seen[client] = Seen(at=time.time(), version=version, labels=labels)

    def take(self) -> dict[str, Seen]:
        """Everything that is not stored yet; it is forgotten here."""
        seen, self._seen = self._seen, {}
        return seen


async def store(presence: Presence, storage: StorageContext) -> None:
    """Store now which clients connected and disconnected."""
    if seen := presence.take():
        try:
            await storage.in_ledger(storage.ledger.saw, seen)
        except SQLAlchemyError as error:  # a full disk: it is not worth more than a line
            log.warning("who was here is not in the ledger: %s", type(error).__name__)


async def keep(presence: Presence, storage: StorageContext) -> None:
    """Store it every `PACE_S` seconds, until cancelled."""
    try:
        while True:
            await asyncio.sleep(PACE_S)
            await store(presence, storage)
    finally:
        await store(presence, storage)
