"""Refused messages: the client and the reason."""

import time

import sqlalchemy as sa

from fedloom.protocol.errors import Refusal
from fedloom.server.ledger.rows import RefusalRow
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import refusals

KEPT_REFUSALS = 100_000


class Refusals(Store):
    """Methods about refusals."""

    def add_refusal(self, client: str, run: str, number: int, refusal: Refusal) -> None:
        """Store a refusal; the oldest are deleted so that peers cannot fill the disk."""
        with self._write() as connection:
            added = connection.execute(
                refusals.insert().values(
                    at=time.time(),
                    client=client,
                    run=run,
                    round=number,
                    code=refusal.code,
                    message=str(refusal),
                    detail=refusal.detail,
                )
            )
            assert added.inserted_primary_key is not None
            oldest = added.inserted_primary_key[0] - KEPT_REFUSALS
            connection.execute(refusals.delete().where(refusals.c.id <= oldest))

    def list_refusals(self, run: str = "", limit: int = 1000) -> list[RefusalRow]:
        """The latest refusals, newest first."""
        query = sa.select(refusals).order_by(refusals.c.id.desc()).limit(limit)
        return self._rows(query.where(refusals.c.run == run) if run else query, RefusalRow)
