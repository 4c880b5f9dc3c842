"""The journal: a log for the device's owner of the data that left and of the tasks it declined.

    journal.jsonl       the newest entries, one JSON document a line
    journal.1.jsonl …   earlier entries; the higher the number, the older

An entry has `at` (seconds since the epoch, UTC), `event` (a key of `EVENTS`), `text` (a sentence)
and the facts of the sentence. It is written before the data that it describes leaves.

Invariants: writing never raises and does not wait for a sync: on a full disk entries are lost, and
nothing else. An entry that a power loss truncated is skipped. Entries that a server can cause in
any number do not displace entries about sent data: see `LOUD`.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fedloom.protocol.positional_files import append_line

log = logging.getLogger(__name__)

Entry: TypeAlias = dict[str, Any]

MAX_BYTES = 1 << 20
"""Size at which the file is rotated: a few thousand rounds."""
KEEP = 4
"""Rotated files that are kept."""

EVENTS = {
    "enrolled": "this device became a client",
    "renewed": "it got a new certificate, or learnt a new signing key",
    "sent": "an update or metrics began to leave",
    "reported": "readings of the device, such as its temperature, began to leave",
    "accepted": "the server accepted what was sent",
    "rejected": "the server rejected what was sent",
    "declined": "the device declined a task, by its policy or conditions",
    "refused": "the server sent something invalid, which was not used",
    "withdrawn": "the server withdrew a task",
    "failed": "the training code failed; the server was notified",
    "left": "this device left the federation",
}


LOUD = frozenset({"declined", "refused", "rejected", "withdrawn"})
"""Events that a server can cause in any number. After a burst, one entry per `LOUD_EVERY_S` is
written, and one entry with the number of those omitted."""
LOUD_BURST = 200
LOUD_EVERY_S = 60.0


class Journal:
    """Writes the journal of one client.

    Args:
        directory: of the client's state.
        max_bytes: size at which the file is rotated.
        keep: rotated files to keep.
        clock: seconds.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = directory / "journal.jsonl"
        self._max_bytes = max_bytes
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()
        self._failing = False
        self._allowance, self._as_of = float(LOUD_BURST), clock()
        self._left_out = 0

    def note(self, event: str, text: str, **facts: Any) -> None:
        """Write an entry.

        Args:
            event: a key of `EVENTS`.
            text: a sentence.
            facts: JSON values by name.
        """
        with self._lock:
            if event in LOUD and not self._allowed():
                self._left_out += 1
                return
            if self._left_out:
                self._write("refused", _left_out(self._left_out), {"left_out": self._left_out})
                self._left_out = 0
            self._write(event, text, facts)

    def _allowed(self) -> bool:
        """Token bucket: a burst, then one entry per `LOUD_EVERY_S`."""
        now = self._clock()
        earned = (now - self._as_of) / LOUD_EVERY_S
        self._allowance, self._as_of = min(LOUD_BURST, self._allowance + earned), now
        allowed = self._allowance >= 1
        self._allowance -= allowed
        return allowed

    def _write(self, event: str, text: str, facts: Mapping[str, Any]) -> None:
        entry = {"at": round(time.time(), 3), "event": event, "text": text, **facts}
        line = json.dumps(entry, ensure_ascii=False, default=str).encode(errors="replace") + b"\n"
        try:
            self._append(line)
        except OSError as error:
            if not self._failing:
                log.warning("the journal cannot be written, entries are lost: %s", error)
            self._failing = True
        else:
            self._failing = False

    def _append(self, line: bytes) -> None:
        if append_line(self._path, line) >= self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(self._keep, 1, -1):
            older = _numbered(self._path, number - 1)
            if older.exists():
                older.replace(_numbered(self._path, number))
        self._path.replace(_numbered(self._path, 1))


def _left_out(count: int) -> str:
    return (
        f"{count:,} more entries about declined, refused, rejected or withdrawn tasks are omitted "
        "here: the server caused them too fast."
    )


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"journal.{number}.jsonl")


def files(directory: Path) -> list[Path]:
    """The files of a journal, the oldest first."""
    rotated = [p for p in directory.glob("journal.*.jsonl") if p.name.split(".")[1].isdigit()]
    rotated.sort(key=lambda path: -int(path.name.split(".")[1]))
    newest = directory / "journal.jsonl"
    return [*rotated, *([newest] if newest.exists() else [])]


def read(directory: Path) -> Iterator[Entry]:
    """The entries of a journal, the oldest first."""
    for path in files(directory):
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            continue  # rotated just now
        for line in lines:
            if (entry := parse(line)) is not None:
                yield entry


def parse(line: bytes) -> Entry | None:
    """Parse a line; None if it is not an entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(entry, dict) and {"at", "event", "text"} <= entry.keys()
    return entry if whole else None


def follow(directory: Path, *, every_s: float = 0.5) -> Iterator[Entry | None]:
    """New entries as they are written; None after each check without one. Never ends."""
    path, handle, rest = directory / "journal.jsonl", -1, b""
    begun = False
    while True:
        if handle < 0 and path.exists():
            handle = os.open(path, os.O_RDONLY)
            if not begun:
                os.lseek(handle, 0, os.SEEK_END)
        begun = True
        new = os.read(handle, MAX_BYTES) if handle >= 0 else b""
        *lines, rest = (rest + new).split(b"\n")
        yield from (entry for line in lines if (entry := parse(line)) is not None)
        if new:
            continue
        if handle >= 0 and not _same(handle, path):
            os.close(handle)
            handle, rest = -1, b""
            continue
        yield None
        time.sleep(every_s)


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
