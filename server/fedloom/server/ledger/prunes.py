"""The models to prune, and the files that others need (`fedloom.server.storage.pruning`)."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from fedloom.server.ledger.rows import MarkedModel
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import models, promotions, rounds, runs
from fedloom.server.ledger.updates import OPEN

MARKED, DONE = 1, 2
"""Values of `models.pruned`: to be removed, and removed; NULL for a kept model."""

STALENESS = 20
"""Default `max_staleness` of buffers, in models."""


class Prunes(Store):
    """Methods about pruning."""

    def mark_pruned(self, keep: int) -> None:
        """Mark the models to remove; the newest `keep` of each run and protected ones are kept."""
        counted = (
            sa.select(models.c.run, sa.func.count())
            .where(models.c.pruned.is_(None))
            .group_by(models.c.run)
        )
        for run, number in self._pairs(counted).items():
            if number > keep:
                self._mark(run, keep)

    def _mark(self, run: str, keep: int) -> None:
        with self._write() as connection:
            spec, current, best = connection.execute(
                sa.select(runs.c.spec, runs.c.model, runs.c.best).where(runs.c.id == run)
            ).one()
            cohort: dict[str, Any] = spec.get("cohort", {})
            if cohort.get("mode") == "buffered":  # clients may download an old model again
                keep = max(keep, int(cohort.get("max_staleness", STALENESS)) + 2)
            last = (
                sa.select(models.c.round)
                .where(models.c.run == run)
                .order_by(models.c.round.desc())
                .limit(keep)
            )
            connection.execute(
                models.update()
                .where(
                    models.c.run == run,
                    models.c.pruned.is_(None),
                    models.c.round > 0,
                    models.c.round.not_in(connection.execute(last).scalars().all()),
                    models.c.digest.not_in([current, (best or {}).get("model") or current]),
                    models.c.digest.not_in(sa.select(promotions.c.digest)),
                )
                .values(pruned=MARKED)
            )

    def marked(self) -> list[MarkedModel]:
        """Models whose files are to be removed."""
        columns = (models.c.run, models.c.round, models.c.digest, models.c.state)
        return self._rows(sa.select(*columns).where(models.c.pruned == MARKED), MarkedModel)

    def unmarked(self) -> list[tuple[str, str | None]]:
        """Models and notes of states that are kept.

        That a rollback makes a model the best again does not unmark its row.
        """
        kept = sa.select(models.c.digest, models.c.state).where(models.c.pruned.is_(None))
        current = sa.select(runs.c.model, runs.c.strategy_state)
        opened = sa.select(rounds.c.model_in, sa.null()).where(rounds.c.state.in_(OPEN))
        promoted = sa.select(promotions.c.digest, sa.null())
        with self._engine.connect() as connection:
            best = connection.execute(sa.select(runs.c.best).where(runs.c.best.is_not(None)))
            return [(mark["model"], None) for mark in best.scalars() if mark["model"]] + [
                (digest, state)
                for query in (kept, current, opened, promoted)
                for digest, state in connection.execute(query)
            ]

    def pruned(self, keys: Iterable[tuple[str, int]]) -> None:
        """Record that the files of these models are removed, except files that others need."""
        with self._write() as connection:
            for run, number in keys:
                its = models.update().filter_by(run=run, round=number)
                connection.execute(its.values(pruned=DONE, state=None))
