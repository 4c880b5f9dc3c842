"""Refused calls: the client, the reason, and how many equal ones there were."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from fedloom.server.ledger.rows import RefusalRow, Refused
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import refusals

KEPT_REFUSALS = 100_000

times = sa.func.coalesce(refusals.c.times, 1).label("times")
"""How many refusals a row counts; rows from before they were counted are one each."""


class Refusals(Store):
    """Methods about refusals."""

    def put_refusals(self, rows: Sequence[tuple[int | None, Refused]]) -> list[int]:
        """Store refusals in one transaction, each in place of the row of its id; returns new ids.

        The oldest rows are deleted so that peers cannot fill the disk.
        """
        with self._write() as connection:
            before = [number for number, _ in rows if number is not None]
            connection.execute(refusals.delete().where(refusals.c.id.in_(before)))
            ids = []
            for _, row in rows:
                added = connection.execute(refusals.insert().values(asdict(row)))
                assert added.inserted_primary_key is not None
                ids.append(int(added.inserted_primary_key[0]))
            _prune(connection)
        return ids

    def list_refusals(self, run: str = "", limit: int = 1000) -> list[RefusalRow]:
        """The latest refusals, newest first."""
        columns = [column for column in refusals.c if column.name != times.name]
        query = sa.select(*columns, times).order_by(refusals.c.id.desc()).limit(limit)
        return self._rows(query.where(refusals.c.run == run) if run else query, RefusalRow)


def _prune(connection: sa.Connection) -> None:
    ends = sa.select(sa.func.min(refusals.c.id), sa.func.max(refusals.c.id))
    first, last = connection.execute(ends).one()
    if last is not None and last - first >= KEPT_REFUSALS:  # ids have gaps: rows may be fewer
        newest = sa.select(refusals.c.id).order_by(refusals.c.id.desc())
        oldest = connection.execute(newest.offset(KEPT_REFUSALS).limit(1)).scalar()
        if oldest is not None:
            connection.execute(refusals.delete().where(refusals.c.id <= oldest))
