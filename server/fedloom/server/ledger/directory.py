"""The directory of clients: their state, labels, notes and holds."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fedloom.server.client_failures import Failures
from fedloom.server.ledger.rows import ClientDetailRow, ClientRow, PartRow
from fedloom.server.ledger.store import (
    ITS_UPDATE,
    UPDATE_COLUMNS,
    Store,
    failed_evaluating,
    its_round,
)
from fedloom.server.ledger.tables import (
    certificates,
    clients,
    cohorts,
    labels,
    rounds,
    runs,
    updates,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A client that connected or disconnected.

    Attributes:
        at: seconds since the epoch.
        version: of its SDK; None for a disconnect.
        labels: set by the device; None for a disconnect.
        due_at: when it checks in next, seconds since the epoch; 0 for a client that holds a stream,
            None for no change.
    """

    at: float
    version: str | None = None
    labels: Mapping[str, str] | None = None
    due_at: float | None = None


@dataclass(frozen=True, slots=True)
class CheckInCounts:
    """Clients that check in.

    Attributes:
        expected: that are not missing.
        missing: that did not come when they were due, nor long after it.
        soon: of those expected, the ones that are due soon.
    """

    expected: int = 0
    missing: int = 0
    soon: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter of clients.

    Attributes:
        text: part of a name, of a note or of a label's value; case is ignored.
        status: `active` or `revoked`; empty for any.
        hold: `quarantine`, `drain` or `none`; empty for any.
        version: of the SDK, or a prefix of it.
        label: `name=value`, or a name alone.
    """

    text: str = ""
    status: str = ""
    hold: str = ""
    version: str = ""
    label: str = ""


class Directory(Store):
    """Methods about the directory of clients."""

    def saw(self, seen: Mapping[str, Seen]) -> None:
        """Record connects and disconnects. Adds clients without an enrolment (plaintext)."""
        with self._write() as connection:
            for name, now in sorted(seen.items()):  # another server locks clients in this order
                values: dict[str, Any] = {"seen_at": now.at}
                if now.version is not None:
                    values["version"] = now.version
                if now.due_at is not None:
                    values["due_at"] = now.due_at or None
                found = connection.execute(
                    clients.update().where(clients.c.name == name).values(values)
                )
                if found.rowcount == 0:
                    values |= {"name": name, "status": "active", "enrolled_at": now.at}
                    connection.execute(clients.insert().values(values))
                if now.labels is not None:
                    _set_labels(connection, name, now.labels, own=True)

    def holds(self) -> dict[str, str]:
        """Clients that are in quarantine or drained."""
        query = sa.select(clients.c.name, clients.c.hold).where(clients.c.hold.is_not(None))
        return self._pairs(query)

    def set_hold(self, name: str, hold: str | None, reason: str) -> bool:
        """Quarantine, drain or release (None) a client; False if nothing changes."""
        same = clients.c.hold.is_(None) if hold is None else clients.c.hold == hold
        held_at = None if hold is None else time.time()
        changes = clients.update().where(
            clients.c.name == name, sa.not_(sa.func.coalesce(same, sa.false()))
        )
        return self._change(changes.values(hold=hold, hold_reason=reason, held_at=held_at)) == 1

    def failures(self) -> dict[str, Failures]:
        """The recent failures of each client that has some."""
        query = sa.select(
            clients.c.name, clients.c.failures, clients.c.failed_at, failed_evaluating()
        )
        with self._engine.connect() as connection:
            found = connection.execute(query.where(clients.c.failures > 0))
            return {name: Failures(*rest) for name, *rest in found}

    def clear_failures(self, name: str) -> None:
        """Set a client's recent failures to none; its last error is kept."""
        self._change(clients.update().where(clients.c.name == name).values(failures=0))

    def failing(self, least: int) -> list[ClientRow]:
        """Active clients without a hold with so many recent failures, most failures first."""
        query = sa.select(clients).where(
            clients.c.failures >= least, clients.c.status == "active", clients.c.hold.is_(None)
        )
        order = (clients.c.failures.desc(), clients.c.name)
        return self._rows(query.order_by(*order), ClientRow)

    def studies(self) -> dict[str, str]:
        """Clients that are in a study, with its name."""
        return self._pairs(sa.select(clients.c.name, clients.c.study).where(clients.c.study != ""))

    def sites(self) -> dict[str, int]:
        """Sites that are not revoked, with the most devices in a sum of each."""
        its = sa.select(clients.c.name, clients.c.devices).where(clients.c.devices > 0)
        return self._pairs(its.where(clients.c.revoked_at.is_(None)))

    def set_study(self, name: str, study: str) -> None:
        """Move a client to a study; empty for none."""
        self._change(clients.update().where(clients.c.name == name).values(study=study))

    def set_devices(self, name: str, devices: int) -> None:
        """Register a site for so many devices in one sum."""
        self._change(clients.update().where(clients.c.name == name).values(devices=devices))

    def set_note(self, name: str, note: str) -> None:
        """Set the operator's note on a client."""
        self._change(clients.update().where(clients.c.name == name).values(note=note))

    def set_labels(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set or remove (None) the operator's labels of a client; the device's labels are kept."""
        with self._write() as connection:
            _remove_labels(connection, name, changes)
            _add_labels(connection, name, {n: v for n, v in changes.items() if v}, own=False)

    # ---- reading -----------------------------------------------------------------------------

    def check_ins(self, missing: float, until: float) -> dict[str, CheckInCounts]:
        """Active clients that check in, counted by study; the empty name is that of no study.

        Args:
            missing: those that were due before this time are missing, seconds since the epoch.
            until: those that are due before this time come soon.
        """
        due, study = clients.c.due_at, sa.func.coalesce(clients.c.study, "")
        counts = (due >= missing, due < missing, sa.and_(due >= missing, due < until))
        query = sa.select(study, *(sa.func.count().filter(each) for each in counts)).where(
            clients.c.status == "active", due.is_not(None)
        )
        with self._engine.connect() as connection:
            found = connection.execute(query.group_by(study))
            return {name: CheckInCounts(*numbers) for name, *numbers in found}

    def names(self, which: Filter) -> list[str]:
        """Names of clients that a filter accepts, in order."""
        query = sa.select(clients.c.name).order_by(clients.c.name)
        query = query.where(*_conditions(which))
        return self._values(query)

    def look_up(
        self, names: Sequence[str], studies: Collection[str] | None = None
    ) -> list[ClientDetailRow]:
        """Rows of some clients by name, with certificates, labels and rounds.

        With `studies`, only rounds of their runs count: a client may have been in others before.
        """
        with self._engine.connect() as connection:
            rows = connection.execute(
                sa.select(clients).where(clients.c.name.in_(names)).order_by(clients.c.name)
            ).mappings()
            found = {row["name"]: {**row, **_no_details()} for row in rows}
            _certificates(connection, found)
            _labels(connection, found)
            _phases(connection, found, _of(cohorts, studies))
            _contributions(connection, found, _of(updates, studies))
        return [ClientDetailRow(**row) for row in found.values()]

    def parts_of(
        self,
        client: str,
        *,
        before: float = 0,
        limit: int = 50,
        studies: Collection[str] | None = None,
    ) -> list[PartRow]:
        """A client's parts in rounds, newest first, with its updates.

        Args:
            client: its name.
            before: `offered_at` of the last one of the page before; 0 for the first page.
            limit: most parts; 0 for all.
            studies: of whose runs; None for all runs.
        """
        query = (
            sa.select(cohorts, rounds.c.kind, rounds.c.state.label("round_state"), *UPDATE_COLUMNS)
            .join(rounds, its_round(cohorts))
            .join(updates, ITS_UPDATE, isouter=True)
            .where(cohorts.c.client == client, _of(cohorts, studies))
            .order_by(cohorts.c.offered_at.desc(), cohorts.c.run, cohorts.c.round.desc())
        )
        query = query.limit(limit) if limit else query
        return self._rows(query.where(cohorts.c.offered_at < before) if before else query, PartRow)

    def versions(self) -> dict[str, int]:
        """Number of clients by reported SDK version."""
        query = sa.select(clients.c.version, sa.func.count()).group_by(clients.c.version)
        return {version or "": count for version, count in self._pairs(query).items()}


def _conditions(which: Filter) -> Iterable[sa.ColumnElement[bool]]:
    if which.text:
        part = f"%{_literal(which.text)}%"
        valued = sa.select(labels.c.client).where(labels.c.value.ilike(part, escape="\\"))
        yield sa.or_(
            clients.c.name.ilike(part, escape="\\"),
            clients.c.note.ilike(part, escape="\\"),
            clients.c.name.in_(valued),
        )
    if which.status:
        yield clients.c.status == which.status
    if which.hold:
        yield clients.c.hold.is_(None) if which.hold == "none" else clients.c.hold == which.hold
    if which.version:
        yield clients.c.version.like(f"{_literal(which.version)}%", escape="\\")
    if which.label:
        name, _, value = which.label.partition("=")
        labelled = sa.select(labels.c.client).where(labels.c.name == name)
        yield clients.c.name.in_(labelled.where(labels.c.value == value) if value else labelled)


def _literal(text: str) -> str:
    """Escape the wildcards of LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _no_details() -> dict[str, Any]:
    return {"labels": {}, "own_labels": {}, "phases": {}}


def _certificates(connection: sa.Connection, found: dict[str, dict[str, Any]]) -> None:
    query = (
        sa.select(certificates.c.client, sa.func.max(certificates.c.not_after))
        .where(certificates.c.client.in_(found))
        .group_by(certificates.c.client)
    )
    for name, until in connection.execute(query):
        found[name]["certificate_until"] = until


def _labels(connection: sa.Connection, found: dict[str, dict[str, Any]]) -> None:
    query = sa.select(labels).where(labels.c.client.in_(found)).order_by(labels.c.name)
    for row in connection.execute(query):
        found[row.client]["own_labels" if row.own else "labels"][row.name] = row.value


def _of(table: sa.Table, studies: Collection[str] | None) -> sa.ColumnElement[bool]:
    """Rows of runs of these studies; all for None."""
    if studies is None:
        return sa.true()
    return table.c.run.in_(sa.select(runs.c.id).where(runs.c.study.in_(studies)))


def _phases(
    connection: sa.Connection, found: dict[str, dict[str, Any]], which: sa.ColumnElement[bool]
) -> None:
    query = (
        sa.select(cohorts.c.client, cohorts.c.phase, sa.func.count())
        .where(cohorts.c.client.in_(found), which)
        .group_by(cohorts.c.client, cohorts.c.phase)
    )
    for name, phase, count in connection.execute(query):
        found[name]["phases"][phase] = count


def _contributions(
    connection: sa.Connection, found: dict[str, dict[str, Any]], which: sa.ColumnElement[bool]
) -> None:
    query = (
        sa.select(
            updates.c.client, sa.func.max(updates.c.accepted_at), sa.func.avg(updates.c.staleness)
        )
        .where(updates.c.client.in_(found), which)
        .group_by(updates.c.client)
    )
    for name, last, staleness in connection.execute(query):
        found[name] |= {
            "last_counted_at": last,
            "staleness": None if staleness is None else float(staleness),
        }


def _set_labels(
    connection: sa.Connection, client: str, wanted: Mapping[str, str], *, own: bool
) -> None:
    known = {
        row.name: row.value
        for row in connection.execute(
            sa.select(labels).where(labels.c.client == client, labels.c.own.is_(own))
        )
    }
    if known != wanted:
        _remove_labels(connection, client, known, own=own)
        _add_labels(connection, client, wanted, own=own)


def _remove_labels(
    connection: sa.Connection, client: str, names: Iterable[str], *, own: bool = False
) -> None:
    connection.execute(
        labels.delete().where(
            labels.c.client == client, labels.c.own.is_(own), labels.c.name.in_(list(names))
        )
    )


def _add_labels(
    connection: sa.Connection, client: str, wanted: Mapping[str, str], *, own: bool
) -> None:
    if wanted:
        rows = [{"client": client, "name": n, "value": v, "own": own} for n, v in wanted.items()]
        connection.execute(labels.insert(), rows)
