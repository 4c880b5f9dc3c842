"""Accepts of several updates at a gate: the rows of all are read together, and written together.

One by one, an accept takes nine statements, each a round trip to the database, while the round's
row is locked for all gates. Together they take a dozen for each
round, however many they are. What they decide is the same,
as `accept_in` with the gate's check decides one after another.

Not for runs with buffers, whose accepts depend on more rows, nor for two updates of one client.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger.rows import values
from fedloom.server.ledger.store import EVALUATE, after_success, counted_in
from fedloom.server.ledger.tables import clients, cohorts, rounds, spool_objects, updates
from fedloom.server.ledger.updates import REPORTING, AcceptedUpdate, check_same, repeat

Round = tuple[str, int]
"""Run and number of a round."""

Slot = tuple[str, int, str]
"""Run, round and client of an update."""

Result = AcceptedUpdate | Refusal | None
"""The update, the refusal, or None for a repeat."""


# Made once, and of the same text for any number of updates: neither SQLAlchemy nor psycopg parses
# them again, and PostgreSQL prepares them.
_NAMES = sa.any_(sa.bindparam("its_names", type_=ARRAY(sa.String)))


def _of_round(run: sa.ColumnElement[str], number: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    return sa.and_(run == sa.bindparam("its_run"), number == sa.bindparam("its_round"))


_ROUND = sa.select(rounds.c.state, rounds.c.kind).where(_of_round(rounds.c.run, rounds.c.number))
_HELD = sa.select(sa.func.coalesce(sa.func.sum(sa.func.coalesce(updates.c.devices, 1)), 0)).where(
    _of_round(updates.c.run, counted_in)
)
_KNOWN = sa.select(updates.c.client, updates.c.identity).where(
    _of_round(updates.c.run, updates.c.round), updates.c.client == _NAMES
)
_ITS_MEMBERS = sa.and_(_of_round(cohorts.c.run, cohorts.c.round), cohorts.c.client == _NAMES)
_MEMBERS = sa.select(cohorts.c.client).where(_ITS_MEMBERS)
_REPORTED = cohorts.update().where(_ITS_MEMBERS).values(phase="reported", reason="")
_CLIENTS = sa.select(clients.c.name, clients.c.status, clients.c.hold).where(
    clients.c.name == _NAMES
)
_BODIES = (
    sa.select(spool_objects.c.file, spool_objects.c.header, spool_objects.c.parts)
    .where(spool_objects.c.file == _NAMES)
    .order_by(spool_objects.c.file)
    .with_for_update(read=True)
)
_SUCCESS = {
    evaluating: after_success(clients.c.name == _NAMES, evaluating=evaluating)
    for evaluating in (False, True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateUpload:
    """An update that a gate accepts if the ledger's rows allow it.

    Attributes:
        update: its parts are durable. In a run with buffers the accept decides in which it counts.
        capacity: most updates of devices that fit in the round's sum.
        parts: of its body.
        max_staleness: of a run with buffers, in models; None in other runs.
        seen: columns of the member's record that the gate has, by name.
    """

    update: AcceptedUpdate
    capacity: int
    parts: int
    max_staleness: int | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)


def together(uploads: Sequence[GateUpload]) -> list[GateUpload]:
    """Those that may be accepted by `accept_together`; none if that gains nothing."""
    of_client = Counter(each.update.client for each in uploads)
    found = [e for e in uploads if e.max_staleness is None and of_client[e.update.client] == 1]
    return found if len(found) > 1 else []


def accept_together(
    connection: sa.Connection, gate: str, uploads: Sequence[GateUpload], now: float
) -> list[Result]:
    """Accept updates in this order, within a transaction that has locked their rounds and clients.

    Args:
        connection: of the transaction.
        gate: its id.
        uploads: as `together` returns them.
        now: `Store.wall`.
    """
    rows = _Rows(connection, uploads)
    results: list[Result] = []
    for each in uploads:
        try:
            results.append(rows.accept(replace(each.update, gate=gate), each))
        except Refusal as refusal:
            results.append(refusal)
    for upload, result in zip(uploads, results, strict=True):
        if result is None:
            repeat(connection, upload.update)
    _write(connection, rows, [each for each in results if isinstance(each, AcceptedUpdate)], now)
    return results


class _Rows:
    """What the ledger has about updates and their rounds; changed by each accept."""

    def __init__(self, connection: sa.Connection, uploads: Sequence[GateUpload]) -> None:
        self.rounds: dict[Round, tuple[str, str]] = {}
        self.held: Counter[Round] = Counter()
        self.known: dict[Slot, str] = {}
        self.members: set[Slot] = set()
        given = [each.update for each in uploads]

        def read(query: sa.Select[Any], **its: object) -> Sequence[Any]:
            return connection.execute(
                query, {f"its_{name}": each for name, each in its.items()}
            ).all()

        for run, number in sorted({(each.run, each.counted) for each in given}):
            for row in read(_ROUND, run=run, round=number):
                self.rounds[run, number] = row.state, row.kind
            self.held[run, number] = int(read(_HELD, run=run, round=number)[0][0])
        for (run, number), names in _by_round(given).items():
            for row in read(_KNOWN, run=run, round=number, names=names):
                self.known[run, number, row.client] = row.identity
            members = read(_MEMBERS, run=run, round=number, names=names)
            self.members |= {(run, number, row.client) for row in members}
        clients_ = read(_CLIENTS, names=[each.client for each in given])
        self.clients = {row.name: (row.status, row.hold) for row in clients_}
        bodies = read(_BODIES, names=[each.file for each in given if each.file])
        self.bodies = {row.file: (row.header, len(row.parts)) for row in bodies}

    def accept(self, update: AcceptedUpdate, upload: GateUpload) -> AcceptedUpdate | None:
        """Accept one update; None for a repeat.

        Raises:
            Refusal: as `accept_in` and the gate's check.
        """
        slot, key, num = _slot(update), (update.run, update.counted), update.devices or 1
        if (known := self.known.get(slot)) is not None:
            check_same(known, update.identity)
            return None
        state, _ = self.rounds.get(key, ("", ""))
        if state != REPORTING or self.held[key] + num > upload.capacity:
            raise Refusal(Code.ROUND_CLOSED, f"Round {update.counted} has closed.")
        check_member(update, is_member=slot in self.members)
        check_client(update.client, *self.clients[update.client])
        if update.file:
            check_body(update.identity, self.bodies.get(update.file), upload.parts)
        self.held[key] += num
        return update


def _write(
    connection: sa.Connection, rows: _Rows, accepted: Sequence[AcceptedUpdate], now: float
) -> None:
    if not accepted:
        return
    connection.execute(
        updates.insert(),
        [{**values(each), "counts_in": each.counted, "accepted_at": now} for each in accepted],
    )
    for (run, number), names in _by_round(accepted).items():
        connection.execute(_REPORTED, {"its_run": run, "its_round": number, "its_names": names})
    for evaluating in (False, True):
        names = [
            each.client
            for each in accepted
            if (rows.rounds[each.run, each.counted][1] == EVALUATE) is evaluating
        ]
        if names:
            connection.execute(_SUCCESS[evaluating], {"its_names": names})


def _by_round(updates_: Sequence[AcceptedUpdate]) -> dict[Round, list[str]]:
    """The clients of updates by the round of their task."""
    found: dict[Round, list[str]] = {}
    for each in updates_:
        found.setdefault((each.run, each.round), []).append(each.client)
    return found


def _slot(update: AcceptedUpdate) -> Slot:
    return update.run, update.round, update.client


def check_member(update: AcceptedUpdate, *, is_member: bool) -> None:
    """Check that an update is of a member of its round.

    Raises:
        Refusal: NOT_IN_COHORT.
    """
    if not is_member:
        raise Refusal(Code.NOT_IN_COHORT, f"Expected a member of round {update.round}.")


def check_client(client: str, status: str, hold: str | None) -> None:
    """Check that a client is neither revoked nor in quarantine.

    Raises:
        Refusal: it is.
    """
    if status != "active":
        raise Refusal(Code.REVOKED, f"The client {client!r} was revoked.")
    if hold == "quarantine":
        raise Refusal(
            Code.QUARANTINED,
            f"The operator has put the client {client!r} in quarantine: its updates are refused.",
        )


def check_body(identity: str, found: tuple[bytes, int] | None, parts: int) -> None:
    """Check that the stored body of an update is whole and of its header.

    Args:
        identity: SHA-256 of its header.
        found: its header, and how many parts are durable; None if there is none.
        parts: that it has.

    Raises:
        Refusal: BUSY.
    """
    is_its = found is not None and hashlib.sha256(found[0]).hexdigest() == identity
    if found is None or found[1] != parts or not is_its:
        raise Refusal(Code.BUSY, "Another upload of this update has begun: try again.")
