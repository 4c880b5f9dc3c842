"""The audit trail: who did what, when; each entry holds the hash of the one before it.

An entry's hash is SHA-256 over the canonical JSON of its fields and the previous entry's hash.
Editing, removing, adding or swapping entries therefore changes every later hash, and the last one,
the head. Truncation breaks no link: only a head that is kept elsewhere reveals it, so the server
logs each head and writes the newest beside the ledger.

Sources: S. Haber and W. S. Stornetta, "How to time-stamp a digital document", 1991; RFC 8785
for canonical JSON (names sorted, no white space; numbers in Python's shortest form).

Old entries are removed from the beginning only, after a retention time. The entry that records it,
`audit.prune`, holds the id and the hash of the last removed entry: the anchor, to which the first
kept entry links. So a trail that was shortened in another way breaks.

Invariants: ids are consecutive, without a gap; an entry is never changed by the server, and removed
only together with all before it, in the transaction that writes their anchor.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UnavailableError, printable
from fedloom.server.ledger.access.tables import audit
from fedloom.server.ledger.lists.order import Cut, cut, each

log = logging.getLogger(__name__)

FIRST = "0" * 64
"""The previous hash in the first entry."""

TRIES = 20
"""Attempts to write an entry while other servers write to the same database."""

HEAD_FILE = "audit.head"
"""File beside the ledger with the newest entry that this server wrote, as `ID:HASH`."""

PRUNE = "audit.prune"
"""Action of the entry that anchors the trail after old entries were removed."""

PRUNED_AT_ONCE = 10_000
"""Most entries removed in one transaction: 50 ms, which rounds may have to wait."""

MAX_TEXT = 300
"""Most characters of a name or a subject, which unauthenticated peers may choose."""

MAX_DIGITS = 19
"""Most digits of an id."""

_DOMAIN = "fedloom audit 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest entry; a copy elsewhere reveals a truncated trail.

    Attributes:
        id: of the entry; 0 in an empty trail.
        hash: 64 hex digits.
    """

    id: int = 0
    hash: str = FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The entries to read; empty and None do not filter.

    Attributes:
        who: name of a principal or a client.
        action: an action, or its first part.
        subject: the object of the action.
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
    """The first place where a trail was changed.

    Attributes:
        id: the first entry that is wrong or missing.
        problem: description of the fault.
    """

    id: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The removed beginning of a trail.

    Attributes:
        entries: number of removed entries, which is the id of the last one.
        hash: of the last one: the anchor.
        until: time of the last one, Unix seconds.
    """

    entries: int
    hash: str
    until: float


def entry_hash(row: Mapping[str, Any]) -> str:
    """The hash of an entry.

    Args:
        row: `id`, `at`, `who`, `how`, `action`, `subject`, `detail` (text) and `previous`.
    """
    names = ("id", "at", "who", "how", "action", "subject", "detail", "previous")
    text = json.dumps([_DOMAIN, *(row[name] for name in names)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def first_break(rows: Iterable[Mapping[str, Any]], anchors: Iterable[Head] = ()) -> Break | None:
    """Find the first entry that was changed in a whole trail by id; None if it is intact.

    `anchors` are heads kept elsewhere.
    """
    wanted = {anchor.id: anchor.hash for anchor in anchors if anchor.id}
    number, previous = 0, FIRST
    needed: Head | None = None
    for row in rows:
        if not number and row["id"] != 1:  # pruned, if a later entry holds this anchor
            needed = Head(id=row["id"] - 1, hash=str(row["previous"]))
            number, previous = needed.id, needed.hash
            wanted = {each: kept for each, kept in wanted.items() if each >= number}
            if wanted.pop(number, previous) != previous:
                return Break(id=number, problem="the trail was rewritten before its kept entries")
        number += 1
        problem = _problem(row, number, previous)
        if problem is None and wanted.get(number, row["hash"]) != row["hash"]:
            problem = "it differs from the kept head: the trail was rewritten"
        if problem is not None:
            return Break(id=number, problem=problem)
        pruned = pruned_in(row)
        if pruned is not None and needed == Head(id=pruned.entries, hash=pruned.hash):
            needed = None
        previous = row["hash"]
    if needed is not None:
        return Break(id=1, problem=f"it is missing: entry {needed.id + 1} comes next")
    if cut := min((n for n in wanted if n > number), default=0):
        return Break(id=number + 1, problem=f"the trail ends before entry {cut} of the kept head")
    return None


def pruned_in(row: Mapping[str, Any]) -> Pruned | None:
    """The removed beginning that an entry records; None for other entries."""
    if row["action"] != PRUNE:
        return None
    try:
        return Pruned(**json.loads(row["detail"]))
    except (ValueError, TypeError):
        return None


def _problem(row: Mapping[str, Any], number: int, previous: str) -> str | None:
    if row["id"] != number:
        return f"it is missing: entry {row['id']} comes next"
    if row["previous"] != previous:
        return "it does not follow the entry before it"
    if not _is_whole(row):
        return "its content was changed"
    return None


def _is_whole(row: Mapping[str, Any]) -> bool:
    try:
        return bool(row["hash"] == entry_hash(row))
    except TypeError:  # a value that is no text: SQLite stores any type
        return False


Entry = dict[str, Any]
"""An entry's columns, those apart that place it in the chain."""


def encoded(detail: Mapping[str, Any]) -> str:
    """An entry's detail as text."""
    return json.dumps(detail, sort_keys=True, separators=(",", ":"))


def new_entry(who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]) -> Entry:
    """An entry of now.

    Args:
        who: name of a principal or a client.
        how: its authentication.
        action: `thing.verb`.
        subject: the object of the action.
        detail: JSON values, without secrets.
    """
    return {
        "at": time.time(),
        "who": printable(who, MAX_TEXT),
        "how": how,
        "action": action,
        "subject": printable(subject, MAX_TEXT),
        "detail": encoded(detail),
    }


class Trail:
    """The trail in a ledger's database.

    Args:
        engine: the ledger's.
        head_file: file for the newest entry; None for no file.
    """

    def __init__(self, engine: sa.Engine, head_file: Path | None = None) -> None:
        self._engine = engine
        self._head_file = head_file
        self._last = Head()

    def append(
        self, who: str, how: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> Head:
        """Write an entry durably, and return it as the new head; see `new_entry`."""
        return self.append_all([new_entry(who, how, action, subject, detail)])[0]

    def append_all(self, entries: Sequence[Entry]) -> list[Head]:
        """Write entries durably in one transaction; returns the head after each.

        Raises:
            UnavailableError: other servers wrote at every attempt.
        """
        for _ in range(TRIES):
            try:
                with self._engine.begin() as connection:
                    self._look_back(connection)
                    heads = [_append(connection, entry) for entry in entries]
            except sa.exc.IntegrityError:
                continue  # another server took the number
            self._last = heads[-1]
            self._keep(self._last)
            return heads
        raise UnavailableError("The audit trail is busy: other servers write to it. Retry.")

    def prune(self, before: float) -> int:
        """Remove the oldest entries from before a time, `PRUNED_AT_ONCE` at most; returns how many.

        The anchor is written in the same transaction. Entries after the first that is not older
        are kept, whatever their times: a clock may have been set back.
        """
        with self._engine.begin() as connection:
            first = connection.execute(sa.select(sa.func.min(audit.c.id))).scalar() or 1
            younger = sa.select(sa.func.min(audit.c.id)).where(audit.c.at >= before)
            last = (connection.execute(younger).scalar() or _head(connection).id + 1) - 1
            last = min(last, first + PRUNED_AT_ONCE - 1)
            row = connection.execute(sa.select(audit).where(audit.c.id == last)).first()
            if row is None:
                return 0
            self._look_back(connection)
            pruned = Pruned(entries=last, hash=row.hash, until=row.at)
            entry = new_entry("fedloom", "server", PRUNE, "", asdict(pruned))
            head = _append(connection, entry)
            connection.execute(audit.delete().where(audit.c.id <= last))
        self._last = head
        self._keep(head)
        return int(last - first + 1)

    def head(self) -> Head:
        """The newest entry."""
        with self._engine.connect() as connection:
            return _head(connection)

    def page(self, wanted: Filter, limit: int) -> list[dict[str, Any]]:
        """The newest entries that a filter accepts, newest first."""
        return list(self.listed(wanted, Cut(limit=limit)))

    def listed(self, wanted: Filter, page: Cut) -> Iterator[dict[str, Any]]:
        """A page of the entries that a filter accepts, newest first unless it is sorted.

        They are read one after another, see `each`.
        """
        query = sa.select(audit)
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
        columns, key = dict(audit.c.items()), (audit.c.id.desc(),)
        if page.sort:  # of ids alone: whole rows make sorting 100,000 entries twice as slow
            ids = cut(query.with_only_columns(audit.c.id), page, columns, key).subquery()
            ordered = replace(page, offset=0, limit=0)
            query = cut(sa.select(audit).join(ids, ids.c.id == audit.c.id), ordered, columns, key)
        else:
            query = cut(query, page, columns, key)
        return map(dict, each(self._engine, query))

    def stop_keeping(self) -> bool:
        """Stop updating the kept head if the trail lacks it; return whether it does.

        The kept head reveals that entries were truncated or rewritten, so it is not overwritten.
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
        """Check that our newest entry is still there, before the next entry hides its loss."""
        if self._last.id and not _has(connection, self._last):
            log.error(
                "the audit trail lacks entry %d, which we wrote: see `fedloom audit verify`",
                self._last.id,
            )
            self._head_file = None

    def _keep(self, head: Head) -> None:
        """Write the head beside the ledger, atomically; an older head serves as well."""
        if self._head_file is not None:
            try:
                write_whole(self._head_file, f"{head.id}:{head.hash}\n")
            except OSError as error:  # the entry is stored: the action succeeded
                log.warning("cannot write the head of the audit trail: %s", error)


def _append(connection: sa.Connection, entry: Entry) -> Head:
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
