"""Updates: accepted once each, and counted in one round.

The row with primary key (run, round, client) accepts an update, so it counts once.

A repeat is acknowledged after a commit that writes. With synchronous replication a row may be read
that the standby lacks: PostgreSQL shows what a commit wrote once its wait for the standby ends,
also if that wait was cancelled. A later commit that returns was replicated with all before it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger.rows import AcceptedRow, MetricsRow, UpdateColumns, UpdateRow, values
from fedloom.server.ledger.store import EVALUATE, Store, after_success, counted_in, its_key, read
from fedloom.server.ledger.tables import clients, cohorts, rounds, updates

REPORTING, CLOSING, COMMITTED, ABANDONED = "reporting", "closing", "committed", "abandoned"
MASKING = "masking"
"""States of a round's row."""
SENT = "sent"
"""Likewise, of a parent's round alone: its sum is stored, and the parent has yet to count it."""
OPEN = (REPORTING, MASKING, CLOSING)
AT_WORK = "offered"
"""The phase of a member's row until its part ends."""
_PAGE = 200
"""Rows of metrics in memory at a time."""


_KEY = its_key("run", "round", "client")
_UPDATE = sa.select(updates).filter_by(**_KEY)
_STATE = (
    sa.select(rounds.c.state, rounds.c.kind)
    .filter_by(run=_KEY["run"], number=sa.bindparam("counted"))
    .with_for_update()  # SQLite has a single writer
)
_COUNTED = sa.and_(updates.c.run == _KEY["run"], counted_in == sa.bindparam("counted"))
_FACTS = sa.select(
    sa.select(updates.c.identity).filter_by(**_KEY).scalar_subquery(),
    sa.select(sa.func.coalesce(sa.func.sum(sa.func.coalesce(updates.c.devices, 1)), 0))
    .where(_COUNTED)
    .scalar_subquery(),
    sa.select(clients.c.failures).filter_by(name=_KEY["client"]).scalar_subquery(),
)
"""The identity of the accepted update, the updates of devices in the sum, the recent failures."""
ACCEPTED = (
    sa.select(*(updates.c[each.name] for each in fields(AcceptedRow)))
    .where(_COUNTED)
    .order_by(updates.c.accepted_at, updates.c.client)
)
_METRICS = sa.select(*(updates.c[each.name] for each in fields(MetricsRow))).where(_COUNTED)
_INSERT = updates.insert()
_REPEAT = (
    updates.update()
    .filter_by(**_KEY, identity=sa.bindparam("its_identity"))
    .values(repeats=sa.func.coalesce(updates.c.repeats, 0) + 1)
)
_REPORTED = cohorts.update().filter_by(**_KEY).values(phase="reported", reason="")
_SUCCESS = {
    evaluating: after_success(clients.c.name == _KEY["client"], evaluating=evaluating)
    for evaluating in (False, True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedUpdate(UpdateColumns):
    """An update to accept; `staleness` models were committed between its two rounds."""

    staleness: int = 0


Check: TypeAlias = Callable[[sa.Connection, AcceptedUpdate], None]


class Updates(Store):
    """Methods about updates."""

    def find_update(self, run: str, number: int, client: str) -> UpdateRow | None:
        """The accepted update of a client for a round, if any."""
        key = {"its_run": run, "its_round": number, "its_client": client}
        return self._row(_UPDATE, UpdateRow, key)

    def find_settled(self, run: str, number: int, client: str, counted: int) -> UpdateRow | None:
        """As `find_update`, once no accept is under way in the round `counted`.

        The transaction of a connection that was lost may still be about to commit.
        """
        with self._write() as connection:
            connection.execute(_STATE, {"its_run": run, "counted": counted})
            key = {"its_run": run, "its_round": number, "its_client": client}
            return next(iter(read(connection, _UPDATE, UpdateRow, key)), None)

    def accept(self, update: AcceptedUpdate, capacity: int) -> bool:
        """Accept an update, once.

        Args:
            update: its bytes are already synced.
            capacity: most updates of devices that fit in the round's sum.

        Returns:
            True if this call accepted it, False if the same update was accepted before.

        Raises:
            Refusal: CONFLICTING_UPDATE or ROUND_CLOSED.
        """
        [result] = self.accept_all([(update, capacity)])
        if isinstance(result, Exception):
            raise result
        return result

    def accept_all(
        self, updates_: Sequence[tuple[AcceptedUpdate, int]], check: Check | None = None
    ) -> Sequence[bool | Exception]:
        """Accept updates in this order, each as `accept` does, in one transaction.

        Args:
            updates_: each with the capacity of its sum.
            check: as of `accept_in`.

        Returns:
            For each what `accept` returns, or the refusal that it raises.
        """
        results: list[bool | Exception] = []
        with self._write() as connection:
            lock_together(connection, [update for update, _ in updates_])
            for update, capacity in updates_:
                try:
                    results.append(accept_in(connection, update, capacity, self.wall(), check))
                except Refusal as refusal:  # nothing of it was written
                    results.append(refusal)
        return results

    def repeat_all(self, repeats: Sequence[UpdateRow]) -> Sequence[bool]:
        """Note that accepted updates were uploaded again, in one transaction.

        Returns:
            For each whether its row is still there, so that it may be acknowledged. False if a
            database took over that lacks it: the update is to be accepted anew.
        """
        with self._write() as connection:
            lock_together(connection, repeats)
            return [repeat(connection, each) for each in repeats]

    def accepted(self, run: str, number: int) -> list[AcceptedRow]:
        """The updates that count in a round, in the order of their acceptance."""
        return self._rows(ACCEPTED, AcceptedRow, {"its_run": run, "counted": number})

    def reported_metrics(self, run: str, number: int) -> Iterator[MetricsRow]:
        """The metrics of the updates that count in a round, in any order.

        Rows are read in pages as they are asked for: together they take kilobytes a client.
        """
        with self._engine.connect() as connection:
            paged = connection.execution_options(yield_per=_PAGE)
            for row in paged.execute(_METRICS, {"its_run": run, "counted": number}).mappings():
                yield MetricsRow(**row)

    def last_counted(self, run: str, client: str, *, with_tensors: bool = True) -> int:
        """The round of a client's task whose update was last committed; 0 for none.

        With `with_tensors`, updates of metrics alone do not count.

        Undone rounds do not count: the run's model does not contain them.
        """
        its_round = sa.and_(rounds.c.run == updates.c.run, rounds.c.number == counted_in)
        [last] = self._values(
            sa.select(sa.func.max(updates.c.round))
            .select_from(updates.join(rounds, its_round))
            .where(
                updates.c.run == run,
                updates.c.client == client,
                *([updates.c.file != ""] if with_tensors else []),
                rounds.c.state == COMMITTED,
                rounds.c.undone_at.is_(None),
            )
        )
        return int(last or 0)


def check_same(known: str, identity: str) -> None:
    """Check that a repeat is the same update.

    Raises:
        Refusal: CONFLICTING_UPDATE.
    """
    if known != identity:
        raise Refusal(
            Code.CONFLICTING_UPDATE,
            "Expected a repeat of the update that was accepted for this round, got another one.",
        )


def lock_together(
    connection: sa.Connection, updates_: Sequence[UpdateColumns], buffered: Collection[str] = ()
) -> dict[str, int]:
    """Lock the rounds and clients of several updates, in an order that all servers have.

    Else two servers may each wait for what the other one has locked for an update before.

    Args:
        connection: of the transaction.
        updates_: to be accepted.
        buffered: their runs with buffers: of these the buffers are locked that are open.

    Returns:
        The number of each run's open buffer; a run without one is left out.
    """
    several = len(updates_) > 1 and connection.dialect.name != "sqlite"  # which has a single writer
    if not (several or buffered):
        return {}
    its = rounds.c.run, rounds.c.number
    keys = sorted({(each.run, each.counted) for each in updates_ if each.run not in buffered})
    is_buffer = sa.and_(rounds.c.state == REPORTING, rounds.c.kind != EVALUATE)
    those = sa.tuple_(*its).in_(keys) | (rounds.c.run.in_(buffered) & is_buffer)
    query = sa.select(*its).where(those).order_by(in_order(rounds.c.run), rounds.c.number)
    found = connection.execute(query.with_for_update()).all()
    if several:
        lock_clients(connection, [each.client for each in updates_])
    return {run: number for run, number in found if run in buffered}


def lock_clients(connection: sa.Connection, names: Collection[str]) -> None:
    """Lock the rows of clients in an order that all servers have."""
    if connection.dialect.name != "sqlite":  # which has a single writer
        those = sa.select(clients.c.name).where(clients.c.name.in_(names))
        in_turn = those.order_by(in_order(clients.c.name))
        connection.execute(in_turn.with_for_update(key_share=True))


def repeat(connection: sa.Connection, update: UpdateColumns) -> bool:
    """Note that an accepted update was uploaded again; False if its row is not there."""
    key = {"its_run": update.run, "its_round": update.round, "its_client": update.client}
    return connection.execute(_REPEAT, {**key, "its_identity": update.identity}).rowcount == 1


def in_order(column: sa.Column[str]) -> sa.ColumnElement[str]:
    """A column in the order of Python's strings, on PostgreSQL."""
    return sa.collate(column, "C")


def accept_in(
    connection: sa.Connection,
    update: AcceptedUpdate,
    capacity: int,
    now: float,
    check: Check | None = None,
) -> bool:
    """Accept an update within a transaction, as `Updates.accept` does.

    Args:
        connection: of the transaction.
        update: its bytes are durable.
        capacity: most updates of devices that fit in the round's sum.
        now: `Store.wall`.
        check: called for a new update, before anything is written; raises a `Refusal`.
    """
    key = {"its_run": update.run, "its_round": update.round, "its_client": update.client}
    counted = {"its_run": update.run, "counted": update.counted}
    state, kind = connection.execute(_STATE, counted).one_or_none() or ("", "")
    # After the row of the round is locked: on PostgreSQL each statement has a snapshot of its own.
    known, held, failures = connection.execute(_FACTS, {**key, **counted}).one()
    if known is not None:
        check_same(known, update.identity)
        repeat(connection, update)
        return False
    if state != REPORTING or held + (update.devices or 1) > capacity:
        raise Refusal(Code.ROUND_CLOSED, f"Round {update.counted} has closed.")
    if check is not None:
        check(connection, update)
    row = {**values(update), "counts_in": update.counted, "accepted_at": now}
    connection.execute(_INSERT, row)
    connection.execute(_REPORTED, key)
    if failures:
        connection.execute(_SUCCESS[kind == EVALUATE], {"its_client": update.client})
    return True
