"""What left this device, and what it would not do: a log for the device's owner, in plain words.

    journal.jsonl       the newest entries, one JSON document a line
    journal.1.jsonl …   earlier ones, the higher the older

An entry has `at` (seconds since the epoch, UTC), `event` (a word of `EVENTS`), `text` (a sentence)
and the facts of the sentence. It is written before the bytes that it is about leave.

Invariants: writing never fails and never waits for the disk's heads: a full disk costs entries and
nothing else. An entry that a power cut left half-written is passed over, and none after it. A
server that says wrong things without end does not push out what was sent: see `LOUD`.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

Entry: TypeAlias = dict[str, Any]

MAX_BYTES = 1 << 20
"""A file is put aside at this size: a few thousand rounds."""
KEEP = 4
"""Files that were put aside."""

EVENTS = {
    "enrolled": "this device became a client",
    "renewed": "it got a new certificate, or learnt a new signing key",
    "sent": "an update or metrics began to leave",
    "accepted": "the server has what was sent",
    "rejected": "the server did not want what was sent",
    "declined": "it took no part, by a rule of its own",
    "refused": "what the server gave was wrong, and was not used",
    "withdrawn": "the server no longer wanted what it had asked for",
    "failed": "the training code failed; its message went to the server",
    "left": "this device left the federation",
}


LOUD = frozenset({"declined", "refused", "rejected", "withdrawn"})
"""Events that a server brings about by words alone, as many as it likes. After a burst there is one
entry for each `LOUD_EVERY_S`, and one that says how many were left out."""
LOUD_BURST = 200
LOUD_EVERY_S = 60.0


class Journal:
    """Writes the journal of one client.

    Args:
        directory: of the client's state.
        max_bytes: size at which a file is put aside.
        keep: files that are kept beside the newest.
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
            text: a sentence in plain words.
            facts: whatever JSON can hold.
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
        """One of the entries that come in a burst, or one a minute."""
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
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        handle = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last one was cut
            whole = os.write(handle, line) == len(line)
        finally:
            os.close(handle)
        if not whole:
            raise OSError("no room for a whole entry")
        if size + len(line) >= self._max_bytes:
            self._put_aside()

    def _put_aside(self) -> None:
        for number in range(self._keep, 1, -1):
            older = _numbered(self._path, number - 1)
            if older.exists():
                older.replace(_numbered(self._path, number))
        self._path.replace(_numbered(self._path, 1))


def _left_out(count: int) -> str:
    return (
        f"Here {count:,} more entries on what was declined, refused or no longer wanted are left "
        "out: the server brought them about faster than they are worth reading."
    )


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"journal.{number}.jsonl")


def files(directory: Path) -> list[Path]:
    """The files of a journal, the oldest first."""
    aside = [p for p in directory.glob("journal.*.jsonl") if p.name.split(".")[1].isdigit()]
    aside.sort(key=lambda path: -int(path.name.split(".")[1]))
    newest = directory / "journal.jsonl"
    return [*aside, *([newest] if newest.exists() else [])]


def read(directory: Path) -> Iterator[Entry]:
    """The entries of a journal, the oldest first."""
    for path in files(directory):
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            continue  # put aside just now
        for line in lines:
            if (entry := parse(line)) is not None:
                yield entry


def parse(line: bytes) -> Entry | None:
    """An entry, or None where there is none in a line."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(entry, dict) and {"at", "event", "text"} <= entry.keys()
    return entry if whole else None


def follow(directory: Path, *, every_s: float = 0.5) -> Iterator[Entry | None]:
    """Entries that are written from now on; None whenever there is none yet. Never ends.

    Args:
        directory: of the client's state.
        every_s: seconds to wait between two looks.
    """
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
