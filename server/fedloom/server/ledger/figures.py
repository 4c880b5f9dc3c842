"""Queries of the console: curves and costs of runs, counts of refusals and clients."""

from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from fedloom.server.ledger.rows import CurveRow, RefusalCount, RunCost
from fedloom.server.ledger.store import Store, counted
from fedloom.server.ledger.tables import certificates, clients, refusals, rounds
from fedloom.server.ledger.updates import COMMITTED


class Figures(Store):
    """Reads over several tables."""

    def curve_rows(self, run: str) -> list[CurveRow]:
        """The metrics of a run's committed rounds, in order, without undone rounds."""
        return self._rows(_measured(run).order_by(rounds.c.number), CurveRow)

    def last_curve_rows(self, run: str, limit: int = 10) -> list[CurveRow]:
        """The last of `curve_rows`."""
        query = _measured(run).order_by(rounds.c.number.desc()).limit(limit)
        return self._rows(query, CurveRow)[::-1]

    def cost(self, run: str) -> RunCost:
        """The cost of a run's rounds so far."""
        sums: list[Any] = [
            sa.cast(sa.func.coalesce(sa.func.sum(counted(each.name)), 0), sa.BigInteger).label(
                each.name
            )
            for each in fields(RunCost)
        ]
        return self._rows(sa.select(*sums).where(rounds.c.run == run), RunCost)[0]

    def refused_since(self, at: float, limit: int = 1000) -> list[RefusalCount]:
        """Counts of refusal codes since a time, among the latest `limit` rows, most frequent first.

        Quarantined and revoked clients are left out: an operator has dealt with them.
        """
        gone = (clients.c.hold == "quarantine") | (clients.c.status == "revoked")
        held = sa.select(clients.c.name).where(gone)
        latest = sa.select(refusals).order_by(refusals.c.id.desc()).limit(limit).subquery()
        times = sa.func.sum(sa.func.coalesce(latest.c.times, 1)).label("times")
        return self._rows(
            sa.select(
                latest.c.code, times,
                sa.func.count(sa.distinct(latest.c.client)).label("clients"),
                sa.func.max(latest.c.client).label("client"),
                sa.func.max(latest.c.message).label("message"),
                sa.func.max(latest.c.at).label("last"),
            )
            .where(latest.c.at >= at, latest.c.client.is_(None) | latest.c.client.not_in(held))
            .group_by(latest.c.code)
            .order_by(times.desc()),
            RefusalCount,
        )  # fmt: skip

    def clients_by_status(self) -> dict[str, int]:
        """Number of clients by status."""
        query = sa.select(clients.c.status, sa.func.count()).group_by(clients.c.status)
        return self._pairs(query)

    def first_certificate_end(self) -> float | None:
        """When the first enrolled client's last certificate expires; None without any."""
        latest = (
            sa.select(sa.func.max(certificates.c.not_after).label("until"))
            .join(clients, clients.c.name == certificates.c.client)
            .where(clients.c.status == "active", certificates.c.revoked_at.is_(None))
            .group_by(certificates.c.client)
            .subquery()
        )
        [first] = self._values(sa.select(sa.func.min(latest.c.until)))
        return None if first is None else float(first)


def _measured(run: str) -> sa.Select[Any]:
    stands = (rounds.c.state == COMMITTED) & rounds.c.undone_at.is_(None)
    size = sa.func.coalesce(counted("bytes_up") + counted("bytes_down"), 0)
    so_far = sa.func.sum(size).over(order_by=rounds.c.number)
    spent = (
        sa.select(rounds.c.number, sa.cast(so_far, sa.BigInteger).label("spent"))
        .where(rounds.c.run == run)
        .subquery()
    )
    return (
        sa.select(
            rounds.c.number, rounds.c.kind, rounds.c.closed_at,
            rounds.c.training, rounds.c.evaluation, rounds.c.privacy,
            spent.c.spent.label("bytes_so_far"),
        )
        .join(spent, spent.c.number == rounds.c.number)
        .where(rounds.c.run == run, stands)
    )  # fmt: skip
