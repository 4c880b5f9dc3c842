"""Is an audit trail what was written? Answered from the ledger's file, without a server."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import IntegrityError, UnavailableError, UsageError
from fedloom.server import config
from fedloom.server.ledger.access_tables import audit
from fedloom.server.ledger.audit_trail import HEAD_FILE, Break, Head, first_break

_HEAD = re.compile(r"(\d{1,18})[:\s]([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found.

    Attributes:
        entries: how many entries there are.
        head: the last of them, as it is there now.
        anchors: heads that were kept, which the trail was held against.
        broken: the first entry that is not what was written; None where all are.
    """

    entries: int
    head: Head
    anchors: tuple[Head, ...]
    broken: Break | None


def read_head(text: str) -> Head:
    """Read `ID:HASH`, as `fedloom audit head` prints it.

    Raises:
        UsageError: it is something else.
    """
    found = _HEAD.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"Expected a head as ID:HASH, as `fedloom audit head` prints it, got "
            f"{text.strip()[:80]!r}."
        )
    return Head(id=int(found[1]), hash=found[2])


def verify(state_dir: Path, anchors: Sequence[str] = ()) -> Verdict:
    """Read the whole trail of a state directory; nothing is written.

    Args:
        state_dir: of the server, which may be running or not.
        anchors: heads that were kept elsewhere, as `ID:HASH`.

    Raises:
        UsageError: there is no server, or an anchor is none.
        IntegrityError: the database or the head beside it is none any more.
        UnavailableError: the database does not answer.
    """
    kept = [read_head(text) for text in anchors]
    beside = state_dir / HEAD_FILE
    if beside.exists():
        kept.append(_beside(beside))
    counted = _Counted(_rows(_url(state_dir)))
    try:
        broken = first_break(counted, kept)
        for _ in counted:  # the rest, to be counted
            pass
    except sa.exc.OperationalError as error:
        raise UnavailableError(
            f"Expected to read the ledger of {state_dir}, got: {error.orig}."
        ) from None
    except sa.exc.DatabaseError as error:
        raise IntegrityError(
            f"Expected the ledger of {state_dir} as it was written, got: {error.orig}."
        ) from None
    return Verdict(entries=counted.entries, head=counted.head, anchors=tuple(kept), broken=broken)


def _beside(path: Path) -> Head:
    try:
        return read_head(path.read_text("utf-8", "replace"))
    except UsageError:
        raise IntegrityError(
            f"Expected the newest entry as ID:HASH in {path}, got something else: keep it as a "
            "record and move it away."
        ) from None


class _Counted:
    """Rows, counted as they pass."""

    def __init__(self, rows: Iterator[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.entries = 0
        self.head = Head()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self._rows:
            self.entries += 1
            self.head = Head(id=row["id"], hash=row["hash"])
            yield row


def _url(state_dir: Path) -> str:
    database = config.load(state_dir).database
    if database:
        return database
    path = (state_dir / "ledger.sqlite").absolute()
    if not path.exists():
        raise UsageError(f"Expected a ledger in {state_dir}, got none: has the server run yet?")
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
