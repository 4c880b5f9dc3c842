"""The audit trail: who did what, when; each entry is bound to the one before it by its hash.

An entry's hash is SHA-256 over the canonical JSON of its fields and the hash of the entry before.
Whoever edits, removes, adds or swaps entries has to compute every later hash anew, and so cannot
keep the last one, the head. Cutting entries off the end breaks no link: only a head that is kept
elsewhere shows it, so the server logs each and writes the newest beside the ledger.

Sources: S. Haber and W. S. Stornetta, "How to time-stamp a digital document", 1991; RFC 8785 for
what makes JSON canonical (names sorted, no white space; our numbers are Python's shortest).

Invariants: ids are 1, 2, 3, ... without a gap; an entry is never changed or removed by the server.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UnavailableError, printable
from fedloom.server.ledger.access_tables import audit

log = logging.getLogger(__name__)

FIRST = "0" * 64
"""What the first entry has for the hash of the one before."""

TRIES = 20
"""Of writing an entry, while other servers on the same database write theirs."""

HEAD_FILE = "audit.head"
"""Beside the ledger: the newest entry that this server wrote, as `ID:HASH`."""

MAX_TEXT = 300
"""Characters of a name or a subject: what strangers claim to be is not kept at any length."""

MAX_DIGITS = 19
"""Of an id."""

_DOMAIN = "fedloom audit 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest entry: keep it elsewhere, and nobody can cut the trail before it.

    Attributes:
        id: of the entry; 0 where there is none.
        hash: 64 hex digits.
    """

    id: int = 0
    hash: str = FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which entries to read; what is empty or None asks for nothing.

    Attributes:
        who: somebody's name.
        action: an action, or its first word.
        subject: what it was done to.
        since: Unix seconds.
        until: likewise.
        before: only entries of lower ids.
    """

    who: str = ""
    action: str = ""
    subject: str = ""
    since: float | None = None
    until: float | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a trail is not what was written.

    Attributes:
        id: the first entry that is wrong or missing.
        problem: what is wrong with it, as a sentence.
    """

    id: int
    problem: str


def entry_hash(row: Mapping[str, Any]) -> str:
    """The hash of an entry.

    Args:
        row: `id`, `at`, `who`, `how`, `action`, `subject`, `detail` (text) and `previous`.
    """
    names = ("id", "at", "who", "how", "action", "subject", "detail", "previous")
    text = json.dumps([_DOMAIN, *(row[name] for name in names)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def first_break(rows: Iterable[Mapping[str, Any]], anchors: Iterable[Head] = ()) -> Break | None:
    """Find the first entry that is not what was written; None where all are.

    Args:
        rows: the whole trail by id.
        anchors: heads that were kept elsewhere.
    """
    wanted = {anchor.id: anchor.hash for anchor in anchors if anchor.id}
    number, previous = 0, FIRST
    for row in rows:
        number += 1
        problem = _problem(row, number, previous)
        if problem is None and wanted.get(number, row["hash"]) != row["hash"]:
            problem = "it is not the entry of the head that was kept: the trail was written anew"
        if problem is not None:
            return Break(id=number, problem=problem)
        previous = row["hash"]
    if cut := min((n for n in wanted if n > number), default=0):
        return Break(id=number + 1, problem=f"the trail ends before entry {cut}, which was kept")
    return None


def _problem(row: Mapping[str, Any], number: int, previous: str) -> str | None:
    if row["id"] != number:
        return f"it is missing: entry {row['id']} comes next"
    if row["previous"] != previous:
        return "it does not follow the entry before it"
    if not _is_whole(row):
        return "its content is not what was written"
    return None


def _is_whole(row: Mapping[str, Any]) -> bool:
    try:
        return bool(row["hash"] == entry_hash(row))
    except TypeError:  # something that is no text: SQLite keeps whatever it is given
        return False


class Trail:
    """The trail in a ledger's database.

    Args:
        engine: the ledger's.
        head_file: where the newest entry is kept besides; None for nowhere.
    """

    def __init__(self, engine: sa.Engine, head_file: Path | None = None) -> None:
        self._engine = engine
        self._head_file = head_file
        self._last = Head()

    def append(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> Head:
        """Write an entry, durably, and return it as the new head.

        Args:
            who: name of a principal or a client.
            how: its way in.
            action: `thing.verb`.
            subject: what it was done to.
            detail: anything that JSON holds, without secrets.

        Raises:
            UnavailableError: other servers wrote all the time.
        """
        entry = {
            "at": time.time(),
            "who": printable(who, MAX_TEXT),
            "how": how,
            "action": action,
            "subject": printable(subject, MAX_TEXT),
            "detail": json.dumps(detail, sort_keys=True, separators=(",", ":")),
        }
        for _ in range(TRIES):
            try:
                with self._engine.begin() as connection:
                    self._look_back(connection)
                    head = _append(connection, entry)
            except sa.exc.IntegrityError:
                continue  # another server took the number
            self._last = head
            self._keep(head)
            return head
        raise UnavailableError("Expected to write the audit trail, but others write to it: retry.")

    def head(self) -> Head:
        """The newest entry."""
        with self._engine.connect() as connection:
            return _head(connection)

    def page(self, wanted: Filter, limit: int) -> list[dict[str, Any]]:
        """The newest entries that are wanted, newest first."""
        query = sa.select(audit).order_by(audit.c.id.desc()).limit(limit)
        for column, value in ((audit.c.who, wanted.who), (audit.c.subject, wanted.subject)):
            if value:
                query = query.where(column == value)
        if wanted.action:
            within = audit.c.action.startswith(f"{wanted.action}.", autoescape=True)
            query = query.where(sa.or_(audit.c.action == wanted.action, within))
        if wanted.since is not None:
            query = query.where(audit.c.at >= wanted.since)
        if wanted.until is not None:
            query = query.where(audit.c.at <= wanted.until)
        if wanted.before is not None:
            query = query.where(audit.c.id < wanted.before)
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def stop_keeping(self) -> bool:
        """Leave the kept head as it is from now on, if the trail lacks it; True if it does.

        It is what shows that entries were cut off or written anew: it is not to be written over.
        """
        if self._head_file is None or not self._head_file.exists():
            return False
        number, _, digest = self._head_file.read_text("utf-8", "replace").strip().partition(":")
        if number.isascii() and number.isdigit() and len(number) < MAX_DIGITS:
            with self._engine.connect() as connection:
                if _has(connection, Head(id=int(number), hash=digest)):
                    return False
        self._head_file = None
        return True

    def _look_back(self, connection: sa.Connection) -> None:
        """Is the newest entry of ours still there? The next would else hide that it is not."""
        if self._last.id and not _has(connection, self._last):
            log.error(
                "the audit trail lacks entry %d, which we wrote: see `fedloom audit verify`",
                self._last.id,
            )
            self._head_file = None

    def _keep(self, head: Head) -> None:
        """Write the head beside the ledger, whole or not at all; an older one would do, too."""
        if self._head_file is not None:
            try:
                write_whole(self._head_file, f"{head.id}:{head.hash}\n")
            except OSError as error:  # the entry stands, and so does what it is about
                log.warning("the head of the audit trail could not be kept: %s", error)


def _append(connection: sa.Connection, entry: dict[str, Any]) -> Head:
    head = _head(connection)
    row = {**entry, "id": head.id + 1, "previous": head.hash}
    row["hash"] = entry_hash(row)
    connection.execute(audit.insert().values(row))
    return Head(id=row["id"], hash=row["hash"])


def _has(connection: sa.Connection, head: Head) -> bool:
    found = connection.execute(sa.select(audit.c.hash).where(audit.c.id == head.id))
    return found.scalar() == head.hash


def _head(connection: sa.Connection) -> Head:
    newest = sa.select(audit.c.id, audit.c.hash).order_by(audit.c.id.desc()).limit(1)
    row = connection.execute(newest).first()
    return Head() if row is None else Head(id=row.id, hash=row.hash)
