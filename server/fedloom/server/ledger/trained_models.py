"""Models that runs began with or committed, and promotions."""

import time
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger.rows import ModelRow, PromotionRow
from fedloom.server.ledger.store import Store, read
from fedloom.server.ledger.tables import models, promotions, runs


class Models(Store):
    """Methods about models and promotions."""

    def list_models(
        self, run: str = "", *, before: tuple[str, int] | None = None, limit: int = 0
    ) -> list[ModelRow]:
        """Committed models, oldest first, of one run or of all.

        Args:
            run: id; all runs if empty.
            before: run and round of the first model of the next page.
            limit: most models, the newest; 0 for all.
        """
        key = (models.c.round,) if run else (models.c.created_at, models.c.run, models.c.round)
        query = sa.select(models).order_by(*(column.desc() for column in key))
        query = query.where(models.c.run == run) if run else query
        if before is not None and run:
            query = query.where(models.c.round < before[1])
        elif before is not None:
            its = models.alias()
            at = sa.select(its.c.created_at).where(its.c.run == before[0], its.c.round == before[1])
            here = sa.tuple_(at.scalar_subquery(), sa.literal(before[0]), sa.literal(before[1]))
            query = query.where(sa.tuple_(*key) < here)
        return self._rows(query.limit(limit) if limit else query, ModelRow)[::-1]

    def num_models(self, run: str = "", runs: Collection[str] | None = None) -> int:
        """Number of models of one run, of some or of all."""
        query = sa.select(sa.func.count()).select_from(models)
        query = query if runs is None else query.where(models.c.run.in_(runs))
        return int(self._values(query.where(models.c.run == run) if run else query)[0])

    def find_models(self, prefix: str, limit: int = 6) -> list[str]:
        """Digests of models, pruned ones too, that begin with `prefix` (hex digits)."""
        within = models.c.digest.between(prefix, f"{prefix}g")
        return sorted(
            self._values(sa.select(models.c.digest).where(within).distinct().limit(limit))
        )

    def knows_model(self, digest: str) -> bool:
        """Whether this model was ever committed or submitted here."""
        return bool(
            self._values(sa.select(models.c.digest).where(models.c.digest == digest).limit(1))
        )

    def model(self, digest: str, run: str = "") -> ModelRow:
        """The latest round of a run, or of any, that has this model.

        Raises:
            UsageError: there is no such model.
        """
        query = sa.select(models).where(models.c.digest == digest)
        query = query.where(models.c.run == run) if run else query
        found = self._row(
            query.order_by(models.c.created_at.desc(), models.c.round.desc()).limit(1), ModelRow
        )
        if found is None:
            raise UsageError(
                f"Expected a model that {run or 'a run'} began with or committed, "
                f"got {digest[:12]}: see `fedloom model list`."
            )
        return found

    # ---- promotions --------------------------------------------------------------------------

    def promote(self, digest: str, run: str = "", note: str = "") -> tuple[PromotionRow, bool]:
        """Promote a model for use, in its run and in the federation.

        Promoting the promoted model again changes nothing.

        Args:
            digest: of a model that a run began with or committed.
            run: id; the latest that has this model if empty.
            note: free text.

        Returns:
            The promotion, and whether it is new.

        Raises:
            UsageError: no run, or not this one, has this model.
        """
        model = self.model(digest, run)
        with self._write() as connection:
            last = next(iter(read(connection, _promoted(None), PromotionRow)), None)
            if last is not None and (last.run, last.digest) == (model.run, digest):
                return last, False
            values: dict[str, Any] = {"run": model.run, "round": model.round, "digest": digest}
            values |= {"at": time.time(), "note": note}
            added = connection.execute(promotions.insert().values(values))
            assert added.inserted_primary_key is not None
            return PromotionRow(id=added.inserted_primary_key[0], **values), True

    def promoted(self, run: str | None = None) -> PromotionRow | None:
        """The latest promotion, of a run or of all.

        Ids rise, so an older promotion cannot be replayed as a newer one.
        """
        return self._row(_promoted(run), PromotionRow)

    def promoted_of(self, name: str) -> PromotionRow | None:
        """As `promoted`, for a run by id or for all runs of a name."""
        meant = sa.select(runs.c.id).where(sa.or_(runs.c.id == name, runs.c.name == name))
        return self._row(_promoted(None).where(promotions.c.run.in_(meant)), PromotionRow)

    def list_promotions(
        self, run: str = "", *, before: int = 0, limit: int = 100
    ) -> list[PromotionRow]:
        """Promotions, newest first, of a run or of all; `before` is the last id of a page."""
        query = sa.select(promotions).order_by(promotions.c.id.desc()).limit(limit)
        query = query.where(promotions.c.run == run) if run else query
        return self._rows(query.where(promotions.c.id < before) if before else query, PromotionRow)


def _promoted(run: str | None) -> sa.Select[Any]:
    query = sa.select(promotions).order_by(promotions.c.id.desc()).limit(1)
    return query if run is None else query.where(promotions.c.run == run)
