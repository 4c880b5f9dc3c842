"""What each member of a round did, and when: kept in memory while it works, stored at the end.

The server records the offer, the answer, the bytes down and up, and the end. If it is killed, only
these times are lost: results are in the ledger.

Invariant: a record belongs to a member of an open round, or is not yet in the ledger.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Key = tuple[str, int]
"""Run and round."""

_MAX_WORDS = 500

_COUNTS = ("bytes_down", "bytes_up", "retries")
_TIMES = (
    "download_began_at", "download_ended_at", "training_began_at", "upload_began_at",
    "upload_ended_at",
)  # fmt: skip


@dataclass(slots=True)
class Record:
    """One member's part in a round; times are seconds since the epoch, None where not seen.

    Attributes:
        took_at: when it accepted the offer.
        download_began_at: of the model or of another file; None if it had all of them.
        download_ended_at: of the last file.
        training_began_at: when it had all files, or reported that it trains.
        given_at: when its model had been sent with its offer; not stored.
        upload_began_at: when its header was accepted.
        upload_ended_at: when its body was complete and on disk.
        ended_at: when it was accepted or refused, failed, declined, or was given up.
        bytes_down: sent to it.
        bytes_up: received from it.
        retries: offers, downloads and uploads beyond the first of each.
        code: of its last refusal.
        reason: of the error, as text.
        phase: its phase; None to keep that of the ledger.
    """

    took_at: float | None = None
    download_began_at: float | None = None
    download_ended_at: float | None = None
    training_began_at: float | None = None
    upload_began_at: float | None = None
    upload_ended_at: float | None = None
    ended_at: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    retries: int = 0
    code: str | None = None
    reason: str | None = None
    phase: str | None = None
    given_at: float | None = None

    def downloading(self, *, resumed: bool) -> None:
        """It downloads a file, or the rest of one."""
        self.download_began_at = self.download_began_at or time.time()
        self.retries += resumed

    def downloaded(self) -> None:
        """Its download is complete."""
        self.download_ended_at = self.training_began_at = time.time()

    def given(self, size_bytes: int) -> None:
        """It has been sent its model with its offer."""
        self.bytes_down += size_bytes
        self.given_at = time.time()

    def stored(self) -> dict[str, Any]:
        """Its columns without None; the ledger keeps its values for those."""
        seen = ((name, getattr(self, name)) for name in self.__slots__ if name != "given_at")
        return {name: value for name, value in seen if value is not None}


class Records:
    """The records of every open round."""

    def __init__(self) -> None:
        self._records: dict[Key, dict[str, Record]] = {}

    def of(self, key: Key) -> Mapping[str, Record]:
        """The members of a round with a record, by name; a live view."""
        return self._records.get(key, {})

    def find(self, key: Key, client: str) -> Record | None:
        """A member's record, or None."""
        return self._records.get(key, {}).get(client)

    def offered(self, key: Key, client: str, *, again: bool) -> None:
        """A member was sent its task."""
        record = self._records.setdefault(key, {}).setdefault(client, Record())
        record.retries += again

    def took(self, key: Key, client: str) -> None:
        """A member accepted its offer."""
        if record := self.find(key, client):
            record.took_at = record.took_at or time.time()
            if record.given_at:
                record.training_began_at = record.training_began_at or record.took_at

    def training(self, key: Key, client: str) -> None:
        """A member reports that it trains."""
        if record := self.find(key, client):
            record.training_began_at = record.training_began_at or time.time()

    def uploading(self, key: Key, client: str) -> Record:
        """A client uploads; returns the record that counts the bytes (unused without a round)."""
        record = self.find(key, client)
        if record is None:
            return Record()
        record.retries += record.upload_began_at is not None
        now = time.time()
        record.upload_began_at = record.upload_began_at or now
        began = record.training_began_at or record.took_at or record.given_at
        record.training_began_at = began or now
        return record

    def refused(self, key: Key, client: str, code: str, words: str) -> None:
        """A message of a member was refused; the member may try again."""
        if record := self.find(key, client):
            record.code, record.reason = code, words[:_MAX_WORDS]

    def accepted(self, key: Key, client: str) -> None:
        """A member's update counts."""
        if record := self.find(key, client):
            record.ended_at, record.phase = time.time(), None

    def ended(self, key: Key, client: str, words: str | None = None) -> None:
        """A member's part is over; its phase is in the ledger."""
        if record := self.find(key, client):
            record.ended_at = record.ended_at or time.time()
            if words is not None:
                record.reason = words[:_MAX_WORDS]

    def withdrawn(self, key: Key, client: str, phase: str) -> None:
        """A round continues or ended without a member; `phase` is LATE or LOST."""
        record = self._records.setdefault(key, {}).setdefault(client, Record())
        record.phase, record.ended_at = phase, record.ended_at or time.time()

    def add(self, key: Key, client: str, seen: Mapping[str, Any]) -> None:
        """Add the columns that a gate has of a member: bytes, retries, and times that lack here."""
        if record := self.find(key, client):
            for name, value in seen.items():
                if name in _COUNTS:
                    setattr(record, name, getattr(record, name) + int(value))
                elif name in _TIMES and getattr(record, name) is None:
                    setattr(record, name, float(value))

    def take(self, key: Key) -> dict[str, Record]:
        """Remove and return the records of a round that is over."""
        return self._records.pop(key, {})

    def take_ended(self, run: str) -> dict[int, dict[str, Record]]:
        """Remove and return records of ended members, by round, while their rounds continue."""
        taken: dict[int, dict[str, Record]] = {}
        for key in [key for key in self._records if key[0] == run]:
            records = self._records[key]
            ended = {c: records.pop(c) for c in list(records) if records[c].ended_at is not None}
            if ended:
                taken[key[1]] = ended
            if not records:
                del self._records[key]
        return taken
