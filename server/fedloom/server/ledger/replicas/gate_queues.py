"""What the server that drives and the gates beside it tell each other, in rows of the ledger.

`inbox` and `mail` are queues that their one reader empties. A number may be visible later than a
higher one, as sequences do not commit in order; the messages of one writer are in order.

Invariants: a gate changes the ledger only while its row exists. What is read is deleted in the same
transaction.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Self

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger.replicas.batch_accepts import (
    GateUpload,
    accept_together,
    check_body,
    check_client,
    check_member,
    together,
)
from fedloom.server.ledger.replicas.database_clock import NOW
from fedloom.server.ledger.replicas.lease_rows import LeaseLostError
from fedloom.server.ledger.rows import RoundRow, RunRow
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import (
    clients,
    cohorts,
    gates,
    inbox,
    mail,
    rounds,
    runs,
    spool_objects,
    updates,
)
from fedloom.server.ledger.updates import (
    AT_WORK,
    CLOSING,
    COMMITTED,
    REPORTING,
    AcceptedUpdate,
    accept_in,
    lock_together,
)

GATE_S = 5.0
"""Age of a gate's row at which the driver strikes the gate out."""

LATE_S = 2.5
"""Age of a gate's row, renewed each second, at which the driver no longer waits for its sums."""

_AT_ONCE = 1000
"""Most messages that are read in one transaction."""


class Told(StrEnum):
    """What a gate tells the driver."""

    CAME = "came"
    """A stream has begun; the content is the nonce of its hello."""
    CHECKED_IN = "checked_in"
    """Likewise, of a client that checks in."""
    SAID = "said"
    """The content is a `ClientMessage`."""
    LEFT = "left"
    """A stream has ended."""
    ACCEPTED = "accepted"
    """An update's row was written; the content is an `AcceptedHere`."""
    REFUSED = "refused"
    """An update was refused; the content is a `RefusedHere`."""
    SEEN = "seen"
    """What a gate saw of a member whose update it accepted; the content is a `SeenHere`."""


class Mailed(StrEnum):
    """What the driver tells a gate."""

    SEND = "send"
    """The content is a `ServerMessage`."""
    END = "end"
    """The stream is to end; the content is a `RefusedHere`."""
    CLOSED = "closed"
    """A round has closed: its sum is to be sealed. The content is its `round_key`."""


@dataclass(frozen=True, slots=True)
class Telling:
    """A message to the driver; the session is empty if it is about none."""

    kind: Told
    session: str
    client: str
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Received:
    """A message that the driver has read."""

    gate: str
    epoch: int
    telling: Telling


@dataclass(frozen=True, slots=True)
class Mail:
    """A message to a session of a gate."""

    gate: str
    session: str
    kind: Mailed
    content: bytes


class Content:
    """What a message says, as JSON; a dataclass of simple values."""

    __slots__ = ()

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload] # of its dataclasses

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read what `bytes` returned."""
        return cls(**json.loads(content))


@dataclass(frozen=True, slots=True)
class AcceptedHere(Content):
    """An update that a gate has accepted."""

    run: str
    round: int
    client: str
    counted: int
    staleness: int
    file: str
    devices: int | None


@dataclass(frozen=True, slots=True)
class RefusedHere(Content):
    """A refusal of an update of a round, or of a stream: then `run` is empty."""

    code: str
    message: str
    run: str = ""
    round: int = 0

    @property
    def refusal(self) -> Refusal:
        """The refusal itself."""
        return Refusal(Code(self.code), self.message)


@dataclass(frozen=True, slots=True)
class SeenHere(Content):
    """Columns of the record of a round's member, by name."""

    run: str
    round: int
    columns: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GateLease:
    """The right of one process to serve devices beside the driver.

    Attributes:
        gate: id of the process.
    """

    gate: str

    def check(self, connection: sa.Connection) -> None:
        """The last step of each transaction of the gate.

        Raises:
            LeaseLostError: the driver has struck the gate out.
        """
        ours = sa.select(sa.literal(1)).select_from(gates).filter_by(id=self.gate)
        if connection.execute(ours.with_for_update(read=True, key_share=True)).first() is None:
            raise LeaseLostError("This gate was struck out: nothing was committed.")


class GateQueues(Store):
    """Methods of the driver and of gates."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._read: dict[str, list[int]] = {}  # messages of a queue that the next read deletes

    # ---- the driver ----

    def take_inbox(self) -> list[Received]:
        """Read what gates told, in the order of each gate; see `_take`."""
        return [
            Received(
                gate=row["gate"],
                epoch=row["epoch"],
                telling=Telling(
                    Told(row["kind"]), row["session"], row["client"], bytes(row["content"])
                ),
            )
            for row in self._take(inbox, sa.true())
        ]

    def unsealed(self, run: str, number: int) -> set[str]:
        """Gates that live, and have accepted updates of a round which are in no sealed sum."""
        its_gate = sa.and_(gates.c.id == updates.c.gate, gates.c.renewed_at >= NOW - LATE_S)
        query = sa.select(gates.c.id).distinct().join_from(updates, gates, its_gate).where(
            updates.c.run == run, updates.c.counts_in == number, updates.c.file != "",
            updates.c.sealed_in.is_(None),
        )  # fmt: skip
        return set(self._values(query))

    def post(self, letters: Sequence[Mail]) -> None:
        """Send messages to gates; those to a gate that is gone are dropped with its row."""
        with self._write() as connection:
            connection.execute(mail.insert(), [asdict(each) for each in letters])

    def strike_out(self) -> dict[str, str]:
        """Delete gates that are late, and mail of gates that are gone.

        Returns:
            Those that live: the name of the machine by id.
        """
        with self._write() as connection:
            is_late = ~gates.c.renewed_at.between(NOW - GATE_S, NOW + GATE_S)
            connection.execute(gates.delete().where(is_late))
            found = connection.execute(sa.select(gates.c.id, gates.c.name).order_by(gates.c.name))
            alive = {row.id: row.name for row in found}
            connection.execute(mail.delete().where(mail.c.gate.not_in(alive)))
        return alive

    # ---- gates ----

    def tell(self, gate: str, epoch: int, tellings: Sequence[Telling]) -> None:
        """Tell the driver of this epoch."""
        with self._write() as connection:
            tell_in(connection, gate, epoch, tellings)

    def take_mail(self, gate: str) -> list[Mail]:
        """Read what the driver told a gate, in order; see `_take`."""
        return [
            Mail(gate, row["session"], Mailed(row["kind"]), bytes(row["content"]))
            for row in self._take(mail, mail.c.gate == gate)
        ]

    def _take(self, table: sa.Table, whose: sa.ColumnElement[bool]) -> Sequence[sa.RowMapping]:
        """Read the next messages of a queue, each once, and delete those that were read before.

        What is read is deleted by the next call: if the answer to a commit is lost, as when the
        database fails over, this reader gets its messages all the same.
        """
        with self._write() as connection:
            if read := self._read.get(table.name):
                connection.execute(table.delete().where(table.c.id.in_(read)))
            query = sa.select(table).where(whose).order_by(table.c.id).limit(_AT_ONCE)
            found = connection.execute(query).mappings().all()
        self._read[table.name] = [row["id"] for row in found]
        return found

    def last_rounds(self) -> list[tuple[RoundRow, RunRow]]:
        """The last round of each active run, and what still reports; with the run, of one moment.

        Of a run with buffers, devices are at work between two rounds, too.
        """
        its_run = runs.c.id == rounds.c.run
        columns = [c.label(f"{c.table.name}.{c.name}") for c in (*rounds.c, *runs.c)]
        query = sa.select(*columns).join_from(rounds, runs, its_run)
        is_last = runs.c.state.in_(("running", "paused")) & (rounds.c.number == runs.c.last_round)
        query = query.where(is_last | (rounds.c.state == REPORTING))
        with self._engine.connect() as connection:
            found = connection.execute(query).mappings().all()
        return [
            (
                RoundRow(**{c.name: row[f"rounds.{c.name}"] for c in rounds.c}),
                RunRow(**{c.name: row[f"runs.{c.name}"] for c in runs.c}),
            )
            for row in found
        ]

    def is_member(self, run: str, number: int, client: str) -> bool:
        """Whether a client is in a round's cohort."""
        its = sa.select(sa.literal(1)).select_from(cohorts)
        return bool(self._values(its.filter_by(run=run, round=number, client=client)))

    def models_before(self, run: str, number: int, count: int) -> dict[int, str]:
        """The models of so many rounds before one; those that were not committed, or undone, lack.

        Args:
            run: id.
            number: of the round.
            count: of earlier rounds.

        Returns:
            The digest of the model that each began with, by its number.
        """
        query = sa.select(rounds.c.number, rounds.c.model_in).where(
            _stands(run), rounds.c.number < number, rounds.c.number >= number - count
        )
        with self._engine.connect() as connection:
            return {row.number: row.model_in for row in connection.execute(query)}

    def accept_at_gate(
        self, gate: str, epoch: int, uploads: Sequence[GateUpload]
    ) -> Sequence[AcceptedUpdate | Exception | None]:
        """Accept updates as `accept_all` does, and tell the driver in the same transaction.

        An update of a run with buffers counts in the one that is open, which its row's lock keeps
        open until the commit.

        Returns:
            For each the update as it counts, None for a repeat, or the refusal: that of `accept`;
            with buffers, ROUND_CLOSED only if none is open now.
        """
        results: list[AcceptedUpdate | Exception | None] = []
        buffered = {each.update.run for each in uploads if each.max_staleness is not None}
        batch = together(uploads)
        with self._write() as connection:
            open_ = lock_together(connection, [each.update for each in uploads], buffered)
            found = accept_together(connection, gate, batch, self.wall()) if batch else []
            of_batch = {id(each): result for each, result in zip(batch, found, strict=True)}
            for each in uploads:
                if id(each) in of_batch:
                    results.append(of_batch[id(each)])
                    continue
                number = None if each.max_staleness is None else open_.get(each.update.run)
                try:
                    here = _placed(replace(each.update, gate=gate), number)
                    check = partial(_check, upload=each)
                    first = accept_in(connection, here, each.capacity, self.wall(), check)
                except Refusal as refusal:  # nothing of it was written
                    is_full = number is not None and refusal.code is Code.ROUND_CLOSED
                    results.append(_full() if is_full else refusal)
                    continue
                results.append(here if first else None)
            told: list[Telling] = []
            for each, result in zip(uploads, results, strict=True):
                if isinstance(result, AcceptedUpdate):
                    told += tellings_of(_here(result), each.seen)
            if told:
                tell_in(connection, gate, epoch, told)
        return results

    def seal(self, gate: str, key: tuple[str, int], file: str, members: Collection[str]) -> bool:
        """Note that a gate's durable sum has the updates of these members.

        Returns:
            False if the round is over, or one of them is not the gate's or is sealed already: then
            nothing is noted, and the sum must not be used.
        """
        run, number = key
        state = sa.select(rounds.c.state).filter_by(run=run, number=number)
        its = sa.and_(updates.c.run == run, updates.c.counts_in == number, updates.c.gate == gate)
        change = updates.update().where(
            its, updates.c.client.in_(members), updates.c.sealed_in.is_(None)
        )
        with self._engine.connect() as connection, connection.begin() as transaction:
            is_open = connection.execute(state.with_for_update()).scalar() in (REPORTING, CLOSING)
            sealing = change.values(sealed_in=file)
            if is_open and connection.execute(sealing).rowcount == len(members):
                return True
            transaction.rollback()
        return False


def round_key(content: bytes) -> tuple[str, int]:
    """Read the content of `Mailed.CLOSED`."""
    run, number = json.loads(content)
    return run, number


def tell_in(connection: sa.Connection, gate: str, epoch: int, tellings: Sequence[Telling]) -> None:
    """Tell the driver within a transaction, as `GateQueues.tell` does."""
    rows = [{"gate": gate, "epoch": epoch, **asdict(each)} for each in tellings]
    connection.execute(inbox.insert(), rows)


def tellings_of(here: AcceptedHere, seen: Mapping[str, Any]) -> list[Telling]:
    """What the driver is told of an accept: what was seen of the member, then the update.

    In this order, because the update may be the last of its round, whose records are stored then.
    """
    record = SeenHere(here.run, here.round, dict(seen))
    first = [Telling(Told.SEEN, "", here.client, bytes(record))] if seen else []
    return [*first, Telling(Told.ACCEPTED, "", here.client, bytes(here))]


def _here(update: AcceptedUpdate) -> AcceptedHere:
    return AcceptedHere(
        run=update.run,
        round=update.round,
        client=update.client,
        counted=update.counted,
        staleness=update.staleness,
        file=update.file,
        devices=update.devices,
    )


def _placed(update: AcceptedUpdate, number: int | None) -> AcceptedUpdate:
    """An update as it counts in an open buffer; unchanged where none is open, or in other runs."""
    if number is None:
        return update
    return replace(update, counts_in=number, staleness=number - update.round)


def _full() -> Refusal:
    return Refusal(Code.BUSY, "Expected a buffer with room, got a full one: try again.")


def _stands(run: str) -> sa.ColumnElement[bool]:
    """Whether a round of this run is committed, and not undone."""
    its = sa.and_(rounds.c.run == run, rounds.c.state == COMMITTED)
    return sa.and_(its, rounds.c.undone_at.is_(None))


def _check(connection: sa.Connection, update: AcceptedUpdate, *, upload: GateUpload) -> None:
    """Check what the driver knows by heart; the rows cannot change before the commit.

    Raises:
        Refusal: the client is no member, revoked or in quarantine, or its body was replaced; with
            buffers, its update is too stale, or its work has ended.
    """
    _check_member(connection, update)
    lock_client(connection, update.client)  # locked before its task, as by who sets a phase
    if upload.max_staleness is not None:
        _check_at_work(connection, update, upload.max_staleness)
    if update.file:
        lock_body(connection, update.file, update.identity, upload.parts)


def _check_member(connection: sa.Connection, update: AcceptedUpdate) -> None:
    its = sa.select(cohorts.c.client).filter_by(run=update.run, round=update.round)
    found = connection.execute(its.filter_by(client=update.client)).first()
    check_member(update, is_member=found is not None)


def _check_at_work(connection: sa.Connection, update: AcceptedUpdate, max_staleness: int) -> None:
    """Check that a client works on its task for the open buffer, as the driver's engine has it."""
    since, stale = update.round, update.staleness
    if stale > max_staleness:
        raise Refusal(
            Code.STALE_ROUND,
            f"Expected an update of at most {max_staleness} models ago, got one of round {since}, "
            f"{stale} models ago.",
        )
    between = sa.and_(rounds.c.number >= since, rounds.c.number < update.counted)
    stand = sa.select(sa.func.count()).select_from(rounds).where(_stands(update.run), between)
    if connection.execute(stand).scalar_one() != stale:
        raise Refusal(
            Code.STALE_ROUND,
            f"Expected an update of the run as it is, got one of round {since}: all work ended "
            "with a later round that was abandoned or undone.",
        )
    its = sa.select(cohorts.c.round, cohorts.c.phase).where(cohorts.c.run == update.run)
    its = its.where(cohorts.c.client == update.client, cohorts.c.round >= since)
    latest = its.order_by(cohorts.c.round.desc()).limit(1)
    if connection.execute(latest.with_for_update()).one() != (since, AT_WORK):
        raise Refusal(Code.NOT_IN_COHORT, f"Expected a client that works on round {since}.")
    of_client = sa.select(sa.literal(1)).select_from(updates)
    of_client = of_client.filter_by(run=update.run, client=update.client, counts_in=update.counted)
    if connection.execute(of_client).first() is not None:  # a sum knows members by their names
        raise Refusal(
            Code.BUSY, f"An update of {update.client!r} counts in this buffer already: try again."
        )


def lock_client(connection: sa.Connection, client: str) -> None:
    """Check that a client is neither revoked nor in quarantine, and lock its row.

    Raises:
        Refusal: REVOKED or QUARANTINED.
    """
    row = sa.select(clients.c.status, clients.c.hold).where(clients.c.name == client)
    # Not FOR SHARE: the accept changes it, and so may one of another round at the same time.
    status, hold = connection.execute(row.with_for_update(key_share=True)).one()
    check_client(client, status, hold)


def lock_body(connection: sa.Connection, file: str, identity: str, parts: int) -> None:
    """Check that a body is whole and of an update's header, and lock its row.

    Raises:
        Refusal: BUSY.
    """
    body = sa.select(spool_objects.c.header, spool_objects.c.parts)
    found = connection.execute(body.filter_by(file=file).with_for_update(read=True)).first()
    check_body(identity, None if found is None else (found.header, len(found.parts)), parts)
