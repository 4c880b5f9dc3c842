"""Models in the object store: one object for each digest, and which store is this ledger's.

Invariants: a row is written once its object is durable. A model that is not in these tables is not
stored, whatever the object store lists.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import model_objects, runs, store_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObject:
    """A stored model.

    Attributes:
        object: stem of its objects' names.
        size_bytes: of its file.
    """

    object: str
    size_bytes: int


class StoredModels(Store):
    """Methods about models in the object store."""

    def model_object(self, digest: str) -> ModelObject | None:
        """The object of a model, if it is stored."""
        row = model_objects.c
        query = sa.select(row.object, row.size_bytes).where(row.digest == digest)
        return self._row(query, ModelObject)

    def stored_models(self, digests: Collection[str]) -> set[str]:
        """Those of these models that are stored."""
        row = model_objects.c
        return set(self._values(sa.select(row.digest).where(row.digest.in_(digests))))

    def find_stored_models(self, prefix: str) -> list[str]:
        """Digests of stored models that begin with `prefix` (hex digits), sorted."""
        digest = model_objects.c.digest
        return sorted(self._values(sa.select(digest).where(digest.between(prefix, f"{prefix}g"))))

    def add_model_object(self, digest: str, name: str, size_bytes: int) -> bool:
        """Note the object of a model; False if another one is noted, which is kept."""
        values = {"digest": digest, "object": name, "size_bytes": size_bytes}
        try:
            self._change(model_objects.insert().values(held_at=time.time(), **values))
        except sa.exc.IntegrityError:
            return False
        return True

    def hold_model_object(self, digest: str) -> bool:
        """Reset a model's age, so that `drop_model_object` keeps it; False if it is not stored."""
        its = model_objects.update().filter_by(digest=digest)
        return self._change(its.values(held_at=time.time())) == 1

    def drop_model_object(self, digest: str, younger_than_s: float) -> bool:
        """Forget a model unless it is younger, written or held; True if it is no longer noted."""
        with self._write() as connection:
            old = model_objects.c.held_at <= time.time() - younger_than_s
            connection.execute(model_objects.delete().filter_by(digest=digest).where(old))
            left = sa.select(model_objects.c.digest).filter_by(digest=digest)
            return connection.execute(left).first() is None

    def model_objects(self) -> list[tuple[str, ModelObject]]:
        """The digest and the object of each stored model."""
        query = sa.select(
            model_objects.c.digest, model_objects.c.object, model_objects.c.size_bytes
        )
        with self._engine.connect() as connection:
            return [
                (row.digest, ModelObject(object=row.object, size_bytes=row.size_bytes))
                for row in connection.execute(query)
            ]

    def model_object_names(self) -> set[str]:
        """Stems of the names of all models' objects."""
        return set(self._values(sa.select(model_objects.c.object)))

    # ---- the store itself --------------------------------------------------------------------

    def store_claim(self) -> str | None:
        """The id by which this ledger has claimed its object store; None if it has none."""
        return next(iter(self._values(sa.select(store_claims.c.id))), None)

    def claim_store(self, name: str) -> None:
        """Note the id by which this ledger has claimed its object store."""
        self._change(store_claims.insert().values(id=name, claimed_at=time.time()))

    def has_runs(self) -> bool:
        """Whether any run was ever submitted."""
        return bool(self._values(sa.select(runs.c.id).limit(1)))
