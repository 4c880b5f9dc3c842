"""The record of masked updates on disk: what has left is never masked again.

    masking/HASH.json   of one run in one federation

        tries   round → the last try for which this device was ready
        left    masked bodies of which a byte may have left, and whether the session was closed

Nothing in it unmasks. A backup that is restored holds older entries: keys are not on disk, so it
can repeat no session; it can mask updates of which the lost entries were, like a new device.

Invariants: an entry is on the disk, synced, before what it says happens. A damaged file refuses
every masked task of its run.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedloom.protocol.atomic_files import sync_directory, write_whole
from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.protocol.v1 import fleet_pb2

FOLDER: Final = "masking"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedUpdate:
    """The update of a masked task.

    Attributes:
        federation: of this client.
        run: id.
        round: number.
        attempt: the server's number of the try.
        model: digest of the model that it was computed from.
        kind: of the task, `train` or `evaluate`.
    """

    federation: str
    run: str
    round: int
    attempt: int
    model: str
    kind: str

    @classmethod
    def of(cls, offer: fleet_pb2.Task, federation: str) -> "MaskedUpdate":
        """The update of an offer."""
        kind = "train" if offer.kind == fleet_pb2.TASK_KIND_TRAIN else "evaluate"
        return cls(
            federation=federation,
            run=offer.key.run,
            round=offer.key.round,
            attempt=offer.masking.attempt,
            model=offer.model.digest,
            kind=kind,
        )


class MaskedRecord:
    """The record of one device.

    Args:
        directory: of the client's state.
    """

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER
        self._lock = threading.Lock()

    def knows(self, federation: str, run: str) -> bool:
        """Whether this run ever had a masked task here."""
        return self._path(federation, run).exists()

    def objection(self, update: MaskedUpdate, repeats: int) -> str | None:
        """Why an update must not be masked; None if it may be.

        Args:
            update: of the task.
            repeats: how many more of one model the device's owner accepts.

        Raises:
            IntegrityError: the record is damaged.
        """
        with self._lock:
            return _objection(self._read(update.federation, update.run), update, repeats)

    def has_left(self, federation: str, run: str, session: bytes) -> bool:
        """Whether the masked body of a session may have left, and the session was not closed.

        Raises:
            IntegrityError: the record is damaged.
        """
        with self._lock:
            known = self._read(federation, run)
        return any(each["session"] == session.hex() for each in _open(known))

    def trains(self, update: MaskedUpdate) -> None:
        """Note that an update is trained for a masked task of its run: no other is made then.

        Raises:
            IntegrityError: the record is damaged.
            OSError: it cannot be written.
        """
        with self._lock:
            if not self._path(update.federation, update.run).exists():
                self._write(update, self._read(update.federation, update.run))

    def begin(self, update: MaskedUpdate) -> int:
        """Note that this device is ready for a try; returns the last one before it, or 0.

        Raises:
            IntegrityError: the record is damaged.
            OSError: it cannot be written.
        """
        with self._lock:
            known = self._read(update.federation, update.run)
            before = int(known["tries"].get(f"{update.round}", 0))
            known["tries"][f"{update.round}"] = max(before, update.attempt)
            self._write(update, known)
            return before

    def leaves(self, update: MaskedUpdate, session: bytes, repeats: int) -> None:
        """Note that a masked body is about to leave.

        Raises:
            Refusal: MASKING_REFUSED, it must not.
            IntegrityError: the record is damaged.
            OSError: it cannot be written.
        """
        with self._lock:
            known = self._read(update.federation, update.run)
            tried = {**known, "tries": {}}  # this very try has begun
            if (objection := _objection(tried, update, repeats)) is not None:
                raise Refusal(Code.MASKING_REFUSED, objection)
            known["left"].append(
                {
                    "round": update.round,
                    "attempt": update.attempt,
                    "model": update.model,
                    "kind": update.kind,
                    "session": session.hex(),
                    "closed": False,
                }
            )
            self._write(update, known)

    def closed(self, update: MaskedUpdate, session: bytes) -> None:
        """Note that a session was proved dead: what was sent for it counts as not sent.

        Raises:
            IntegrityError: the record is damaged.
            OSError: it cannot be written.
        """
        with self._lock:
            known = self._read(update.federation, update.run)
            for each in known["left"]:
                if each["session"] == session.hex():
                    each["closed"] = True
            self._write(update, known)

    def _path(self, federation: str, run: str) -> Path:
        name = hashlib.sha256(f"{federation}\0{run}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.json"

    def _read(self, federation: str, run: str) -> dict[str, Any]:
        path = self._path(federation, run)
        try:
            known = json.loads(path.read_bytes())
            _check(known)
        except FileNotFoundError:
            return {"federation": federation, "run": run, "tries": {}, "left": []}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IntegrityError(
                f"Expected the record of masked updates in {path}, got other content ({error}). "
                "Restore it; without it, this device masks no update of this run."
            ) from None
        return known  # type: ignore[no-any-return]

    def _write(self, update: MaskedUpdate, known: Mapping[str, Any]) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(update.federation, update.run)
        write_whole(path, json.dumps(known), sync=True, mode=0o600)
        sync_directory(self._folder.parent)


def _check(known: Any) -> None:
    """Check the form of a record; raises where it has another."""
    for number, attempt in known["tries"].items():
        int(number), int(attempt)
    for each in known["left"]:
        int(each["round"]), int(each["attempt"]), bytes.fromhex(each["session"])
        str(each["model"]), str(each["kind"]), bool(each["closed"])


def _open(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in known["left"] if not each["closed"]]


def _objection(known: Mapping[str, Any], update: MaskedUpdate, repeats: int) -> str | None:
    left = _open(known)
    if any(each["round"] == update.round for each in left):
        return (
            f"the masked update of round {update.round} has left this device, and no proof came "
            "that its session can never be read: it is not masked again."
        )
    alike = [e for e in left if (e["model"], e["kind"]) == (update.model, update.kind)]
    if len(alike) > repeats:
        return (
            "a masked update of this model has left this device, in round "
            f"{alike[-1]['round']}: two sums of one model tell members apart, and the device's "
            f"policy allows {repeats} more (masking.repeats)."
        )
    last = int(known["tries"].get(f"{update.round}", 0))
    if update.attempt <= last:
        return (
            f"this device was ready for try {last} of round {update.round} and has left it; "
            f"expected a later try, got {update.attempt}."
        )
    return None
