"""What the console draws: the curves of a run, what is refused, who is there. Queries alone."""

from typing import Any

import sqlalchemy as sa

from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import certificates, clients, refusals, rounds
from fedloom.server.ledger.updates import COMMITTED


class Figures(Store):
    """Reads over several tables."""

    def curve_rows(self, run: str) -> list[dict[str, Any]]:
        """What a run's committed rounds measured, in order; rounds that were undone left out."""
        return self._rows(_measured(run).order_by(rounds.c.number))

    def last_curve_rows(self, run: str, limit: int = 10) -> list[dict[str, Any]]:
        """The last of `curve_rows`."""
        return self._rows(_measured(run).order_by(rounds.c.number.desc()).limit(limit))[::-1]

    def cost(self, run: str) -> dict[str, int]:
        """What a run's rounds cost so far: `bytes_up`, `bytes_down`, `counted`, `retries`."""
        names = ("bytes_up", "bytes_down", "counted", "retries")
        sums = [sa.func.sum(rounds.c.summary[name].as_integer()).label(name) for name in names]
        row = self._row(sa.select(*sums).where(rounds.c.run == run))
        return {name: int((row or {}).get(name) or 0) for name in names}

    def refused_since(self, at: float, limit: int = 1000) -> list[dict[str, Any]]:
        """How often what was refused since a time, of the latest `limit`, most frequent first.

        Clients in quarantine and revoked ones are left out: somebody has seen to them.

        Returns:
            `code`, `times`, `clients` (how many of them), `client` and `message` (of one of them),
            `last`.
        """
        gone = (clients.c.hold == "quarantine") | (clients.c.status == "revoked")
        held = sa.select(clients.c.name).where(gone)
        latest = sa.select(refusals).order_by(refusals.c.id.desc()).limit(limit).subquery()
        times = sa.func.count().label("times")
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
            .order_by(times.desc())
        )  # fmt: skip

    def clients_by_status(self) -> dict[str, int]:
        """How many clients are in each status."""
        query = sa.select(clients.c.status, sa.func.count().label("number"))
        rows = self._rows(query.group_by(clients.c.status))
        return {row["status"]: row["number"] for row in rows}

    def first_certificate_end(self) -> float | None:
        """When the first of the enrolled clients is without a certificate; None without any."""
        latest = (
            sa.select(sa.func.max(certificates.c.not_after).label("until"))
            .join(clients, clients.c.name == certificates.c.client)
            .where(clients.c.status == "active", certificates.c.revoked_at.is_(None))
            .group_by(certificates.c.client)
            .subquery()
        )
        row = self._row(sa.select(sa.func.min(latest.c.until).label("first")))
        return None if row is None else row["first"]


def _measured(run: str) -> sa.Select[Any]:
    stands = (rounds.c.state == COMMITTED) & rounds.c.undone_at.is_(None)
    return sa.select(
        rounds.c.number, rounds.c.kind, rounds.c.closed_at,
        rounds.c.training, rounds.c.evaluation, rounds.c.privacy,
    ).where(rounds.c.run == run, stands)  # fmt: skip
