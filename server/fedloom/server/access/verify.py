"""Verifies an audit trail from the ledger's file, without a server."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import IntegrityError, UnavailableError, UsageError
from fedloom.server import config
from fedloom.server.ledger.access.tables import audit
from fedloom.server.ledger.audit_trail import HEAD_FILE, Break, Head, Pruned, first_break, pruned_in

_HEAD = re.compile(r"(\d{1,18})[:\s]([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a verification.

    Attributes:
        entries: number of entries.
        head: the last entry.
        anchors: kept heads that the trail was compared with.
        broken: the first changed entry; None if all are intact.
        pruned: the entries that were removed after their retention; None without any.
        since: time of the first kept entry, Unix seconds; None in an empty trail.
    """

    entries: int
    head: Head
    anchors: tuple[Head, ...]
    broken: Break | None
    pruned: Pruned | None = None
    since: float | None = None


def read_head(text: str) -> Head:
    """Read `ID:HASH`, as `fedloom audit head` prints it.

    Raises:
        UsageError: the text has another form.
    """
    found = _HEAD.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"Expected a head as ID:HASH, as `fedloom audit head` prints it, got "
            f"{text.strip()[:80]!r}."
        )
    return Head(id=int(found[1]), hash=found[2])


def verify(state_dir: Path, anchors: Sequence[str] = ()) -> Verdict:
    """Verify the whole trail of a state directory, read-only; its server may be running.

    `anchors` are heads kept elsewhere, as `ID:HASH`.

    Raises:
        UsageError: there is no server, or an anchor is not valid.
        IntegrityError: the database or the head file is damaged.
        UnavailableError: the database does not answer.
    """
    kept = [read_head(text) for text in anchors]
    beside = state_dir / HEAD_FILE
    if beside.exists():
        kept.append(_beside(beside))
    counted = _Counted(_rows(_url(state_dir)))
    try:
        broken = first_break(counted, kept)
        for _ in counted:  # count the rest
            pass
    except sa.exc.OperationalError as error:
        raise UnavailableError(f"The ledger of {state_dir} cannot be read: {error.orig}.") from None
    except sa.exc.DatabaseError as error:
        raise IntegrityError(f"The ledger of {state_dir} is damaged: {error.orig}.") from None
    return Verdict(
        entries=counted.entries,
        head=counted.head,
        anchors=tuple(kept),
        broken=broken,
        pruned=counted.pruned,
        since=counted.since,
    )


def _beside(path: Path) -> Head:
    try:
        return read_head(path.read_text("utf-8", "replace"))
    except UsageError:
        raise IntegrityError(
            f"Expected the newest entry as ID:HASH in {path}, got something else. Keep the file "
            "as evidence and move it away."
        ) from None


class _Counted:
    """Rows, counted as they pass."""

    def __init__(self, rows: Iterator[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.entries = self._removed = 0
        self.head = Head()
        self.since: float | None = None
        self.pruned: Pruned | None = None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self._rows:
            if self.since is None:
                self.since, self._removed = row["at"], row["id"] - 1
            pruned = pruned_in(row)
            if pruned is not None and pruned.entries == self._removed:
                self.pruned = pruned
            self.entries += 1
            self.head = Head(id=row["id"], hash=row["hash"])
            yield row


def _url(state_dir: Path) -> str:
    database = config.load(state_dir).database
    if database:
        return database
    path = (state_dir / "ledger.sqlite").absolute()
    if not path.exists():
        raise UsageError(f"There is no ledger in {state_dir}. Has the server run yet?")
    return f"sqlite:///file:{path}?mode=ro&uri=true"


def _rows(url: str) -> Iterator[Mapping[str, Any]]:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            found = connection.execution_options(yield_per=1000).execute(
                sa.select(audit).order_by(audit.c.id)
            )
            yield from ({**row} for row in found.mappings())
    finally:
        engine.dispose()
