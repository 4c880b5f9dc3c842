"""What each member of a round did, and when: kept in memory while it works, stored at the end.

The server writes down what it sees of a client: the offer, the answer, the bytes down and up, the
end. A server that is killed loses these times and nothing else: what counts is in the ledger.

Invariant: a record is of a member of a round that is open, or that the ledger lacks.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Key = tuple[str, int]
"""Run and round."""

_MAX_WORDS = 500


@dataclass(slots=True)
class Record:
    """One member's part in a round; times are seconds since the epoch, None where not seen.

    Attributes:
        took_at: it accepted the offer.
        download_began_at: of the model, or of what comes beside it; None where it had it.
        download_ended_at: of the last of them.
        training_began_at: it had all that it needed, or said so.
        upload_began_at: its header was good.
        upload_ended_at: its body was whole and on disk.
        ended_at: accepted, refused, failed, declined, or not waited for any more.
        bytes_down: sent to it.
        bytes_up: received from it.
        retries: offers, downloads and uploads beyond the first of each.
        code: of its last refusal.
        reason: in words, of what went wrong.
        phase: where it stands; None where the ledger knows better.
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

    def downloaded(self) -> None:
        """It has all the bytes that it asked for."""
        self.download_ended_at = self.training_began_at = time.time()

    def stored(self) -> dict[str, Any]:
        """Its columns; what is None keeps what the ledger has."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Records:
    """The records of every open round."""

    def __init__(self) -> None:
        self._records: dict[Key, dict[str, Record]] = {}

    def of(self, key: Key) -> Mapping[str, Record]:
        """The members of a round that did anything, by name; a live view."""
        return self._records.get(key, {})

    def find(self, key: Key, client: str) -> Record | None:
        """A member's record, if there is one."""
        return self._records.get(key, {}).get(client)

    def offered(self, key: Key, client: str, *, again: bool) -> None:
        """A member was sent its task."""
        record = self._records.setdefault(key, {}).setdefault(client, Record())
        record.retries += again

    def took(self, key: Key, client: str) -> None:
        """A member accepted its offer."""
        if record := self.find(key, client):
            record.took_at = record.took_at or time.time()

    def downloading(self, key: Key | None, client: str, *, resumed: bool) -> Record:
        """Somebody asks for bytes; count them in what comes back, which may be of no round."""
        record = self.find(key, client) if key else None
        if record is None:
            return Record()
        record.download_began_at = record.download_began_at or time.time()
        record.retries += resumed
        return record

    def training(self, key: Key, client: str) -> None:
        """A member says that it trains."""
        if record := self.find(key, client):
            record.training_began_at = record.training_began_at or time.time()

    def uploading(self, key: Key, client: str) -> Record:
        """An update may come; count its bytes in what comes back, which may be of no round."""
        record = self.find(key, client)
        if record is None:
            return Record()
        record.retries += record.upload_began_at is not None
        now = time.time()
        record.upload_began_at = record.upload_began_at or now
        record.training_began_at = record.training_began_at or record.took_at or now
        return record

    def refused(self, key: Key, client: str, code: str, words: str) -> None:
        """Something that a member sent was turned away; it may still send better."""
        if record := self.find(key, client):
            record.code, record.reason = code, words[:_MAX_WORDS]

    def accepted(self, key: Key, client: str) -> None:
        """A member's update counts."""
        if record := self.find(key, client):
            record.ended_at, record.phase = time.time(), None

    def ended(self, key: Key, client: str, words: str | None = None) -> None:
        """A member's part is over; the ledger knows how."""
        if record := self.find(key, client):
            record.ended_at = record.ended_at or time.time()
            if words is not None:
                record.reason = words[:_MAX_WORDS]

    def withdrawn(self, key: Key, client: str, phase: str) -> None:
        """A round goes on, or has ended, without a member; `phase` is LATE or LOST."""
        record = self._records.setdefault(key, {}).setdefault(client, Record())
        record.phase, record.ended_at = phase, record.ended_at or time.time()

    def take(self, key: Key) -> dict[str, Record]:
        """The records of a round that is over; they are forgotten here."""
        return self._records.pop(key, {})

    def take_ended(self, run: str) -> dict[int, dict[str, Record]]:
        """Records of members whose part is over, by round, where rounds go on for the others."""
        taken: dict[int, dict[str, Record]] = {}
        for key in [key for key in self._records if key[0] == run]:
            records = self._records[key]
            ended = {c: records.pop(c) for c in list(records) if records[c].ended_at is not None}
            if ended:
                taken[key[1]] = ended
            if not records:
                del self._records[key]
        return taken
