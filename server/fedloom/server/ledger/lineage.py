"""The origin of models: run, round, contributing clients and previous model."""

from collections.abc import Sequence

import sqlalchemy as sa

from fedloom.server.ledger.rows import ContributorRow, EvaluationRow, OriginRow, PromotionRow
from fedloom.server.ledger.store import Store, counted_in, its_round
from fedloom.server.ledger.tables import models, promotions, rounds, updates
from fedloom.server.ledger.updates import COMMITTED


class Lineage(Store):
    """Methods about the origin of models."""

    def origins(self, digest: str) -> list[OriginRow]:
        """The rounds that committed a model and the runs that began with it, oldest first."""
        query = (
            sa.select(
                models.c.run, models.c.round, models.c.created_at, models.c.size_bytes,
                rounds.c.model_in, rounds.c.kind, rounds.c.undone_at, rounds.c.training,
                rounds.c.privacy,
            )
            .join(rounds, its_round(models), isouter=True)
            .where(models.c.digest == digest)
            .order_by(models.c.created_at, models.c.run)
        )  # fmt: skip
        return self._rows(query, OriginRow)

    def contributors(self, run: str, number: int, limit: int = 1000) -> list[ContributorRow]:
        """The clients whose updates are in a round's sum, by name."""
        query = (
            sa.select(updates.c.client, updates.c.weight, updates.c.staleness, updates.c.round)
            .where(updates.c.run == run, counted_in == number)
            .order_by(updates.c.client)
            .limit(limit)
        )
        return self._rows(query, ContributorRow)

    def promotions_of(self, digest: str) -> list[PromotionRow]:
        """When a model was promoted, newest first."""
        query = sa.select(promotions).where(promotions.c.digest == digest)
        return self._rows(query.order_by(promotions.c.id.desc()).limit(100), PromotionRow)

    def evaluations(self, digests: Sequence[str]) -> dict[str, list[EvaluationRow]]:
        """Evaluations of models: the committed rounds that began with each."""
        query = (
            sa.select(rounds.c.model_in, rounds.c.run, rounds.c.number, rounds.c.evaluation)
            .where(rounds.c.model_in.in_(digests), rounds.c.state == COMMITTED)
            .order_by(rounds.c.closed_at)
        )
        found: dict[str, list[EvaluationRow]] = {digest: [] for digest in digests}
        for row in self._rows(query, EvaluationRow):
            if row.evaluation:
                found[row.model_in].append(row)
        return found
