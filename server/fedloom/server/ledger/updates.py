"""Updates: accepted once each, and counted in one round.

The row with primary key (run, round, client) accepts an update, so it counts once.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger.rows import AcceptedRow, MetricsRow, UpdateColumns, UpdateRow, values
from fedloom.server.ledger.store import EVALUATE, Store, after_success, counted_in
from fedloom.server.ledger.tables import clients, cohorts, rounds, updates

REPORTING, CLOSING, COMMITTED, ABANDONED = "reporting", "closing", "committed", "abandoned"
MASKING = "masking"
"""States of a round's row."""
SENT = "sent"
"""Likewise, of a parent's round alone: its sum is stored, and the parent has yet to count it."""
OPEN = (REPORTING, MASKING, CLOSING)
_PAGE = 200
"""Rows of metrics in memory at a time."""


# Made once: to make one anew takes SQLAlchemy 0.2 ms, and to execute a small query 0.05.
_KEY: dict[str, sa.BindParameter[Any]] = {
    name: sa.bindparam(f"its_{name}") for name in ("run", "round", "client")
}
_UPDATE = sa.select(updates).filter_by(**_KEY)
_IDENTITY = sa.select(updates.c.identity).filter_by(**_KEY)
_STATE = (
    sa.select(rounds.c.state, rounds.c.kind)
    .filter_by(run=_KEY["run"], number=sa.bindparam("counted"))
    .with_for_update()  # SQLite has a single writer
)
_HELD = (
    sa.select(sa.func.coalesce(sa.func.sum(sa.func.coalesce(updates.c.devices, 1)), 0))
    .select_from(updates)
    .where(updates.c.run == _KEY["run"], counted_in == sa.bindparam("counted"))
)
_INSERT = updates.insert()
_REPORTED = cohorts.update().filter_by(**_KEY).values(phase="reported", reason="")
_SUCCESS = {
    evaluating: after_success(clients.c.name == _KEY["client"], evaluating=evaluating)
    for evaluating in (False, True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedUpdate(UpdateColumns):
    """An update to accept; `staleness` models were committed between its two rounds."""

    staleness: int = 0

    @property
    def counted(self) -> int:
        """The round whose sum it is in."""
        return self.round if self.counts_in is None else self.counts_in


class Updates(Store):
    """Methods about updates."""

    def find_update(self, run: str, number: int, client: str) -> UpdateRow | None:
        """The accepted update of a client for a round, if any."""
        key = {"its_run": run, "its_round": number, "its_client": client}
        return self._row(_UPDATE, UpdateRow, key)

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
        self, updates_: Sequence[tuple[AcceptedUpdate, int]]
    ) -> Sequence[bool | Exception]:
        """Accept updates in this order, each as `accept` does, in one transaction.

        Returns:
            For each what `accept` returns, or the refusal that it raises.
        """
        results: list[bool | Exception] = []
        with self._write() as connection:
            for update, capacity in updates_:
                try:
                    results.append(_accept(connection, update, capacity))
                except Refusal as refusal:  # nothing of it was written
                    results.append(refusal)
        return results

    def accepted(self, run: str, number: int) -> list[AcceptedRow]:
        """The updates that count in a round, in the order of their acceptance."""
        column = updates.c
        return self._rows(
            sa.select(
                column.client,
                column.round,
                column.file,
                column.staleness,
                column.weight,
                column.devices,
                column.members,
            )
            .where(column.run == run, counted_in == number)
            .order_by(column.accepted_at, column.client),
            AcceptedRow,
        )

    def reported_metrics(self, run: str, number: int) -> Iterator[MetricsRow]:
        """The metrics of the updates that count in a round, in any order.

        Rows are read in pages as they are asked for: together they take kilobytes a client.
        """
        query = sa.select(updates.c.client, updates.c.training, updates.c.evaluation)
        query = query.where(updates.c.run == run, counted_in == number)
        with self._engine.connect() as connection:
            paged = connection.execution_options(yield_per=_PAGE)
            for row in paged.execute(query).mappings():
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


def _accept(connection: sa.Connection, update: AcceptedUpdate, capacity: int) -> bool:
    key = {"its_run": update.run, "its_round": update.round, "its_client": update.client}
    counted = {"its_run": update.run, "counted": update.counted}
    state, kind = connection.execute(_STATE, counted).one_or_none() or ("", "")
    known = connection.execute(_IDENTITY, key).scalar()
    if known is not None:
        check_same(known, update.identity)
        return False
    held = connection.execute(_HELD, counted).scalar_one()
    if state != REPORTING or held + (update.devices or 1) > capacity:
        raise Refusal(Code.ROUND_CLOSED, f"Round {update.counted} has closed.")
    row = {**values(update), "counts_in": update.counted, "accepted_at": time.time()}
    connection.execute(_INSERT, row)
    connection.execute(_REPORTED, key)
    connection.execute(_SUCCESS[kind == EVALUATE], {"its_client": update.client})
    return True
