"""Reads what each client did last, for the check of a new run."""

import sqlalchemy as sa

from fedloom.server.ledger.rows import ClientRow, LastPartRow
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import certificates, clients, cohorts


class LastParts(Store):
    """Methods about the last parts of clients in rounds."""

    def active_clients(self) -> list[ClientRow]:
        """Clients that are not revoked, by name."""
        until = (
            sa.select(sa.func.max(certificates.c.not_after))
            .where(certificates.c.client == clients.c.name)
            .scalar_subquery()
        )
        query = sa.select(clients, until.label("certificate_until"))
        active = query.where(clients.c.status == "active")
        return self._rows(active.order_by(clients.c.name), ClientRow)

    def last_parts(self, phase: str | None = None) -> list[LastPartRow]:
        """The last part in a round of each client that has one, or its last one in this phase."""
        wanted = sa.true() if phase is None else cohorts.c.phase == phase
        latest = (
            sa.select(cohorts.c.client, sa.func.max(cohorts.c.offered_at).label("at"))
            .where(wanted)
            .group_by(cohorts.c.client)
            .subquery()
        )
        same = sa.and_(cohorts.c.client == latest.c.client, cohorts.c.offered_at == latest.c.at)
        query = sa.select(cohorts.c.client, cohorts.c.run, cohorts.c.phase, cohorts.c.reason)
        return self._rows(query.join(latest, same).where(wanted), LastPartRow)
