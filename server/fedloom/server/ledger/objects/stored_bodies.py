"""Files of the spool in the object store: bodies of updates in parts, and sums of sessions.

A row names the parts that are durable, in order; it is written before its first part.

Invariant: of each file of the spool there is one row, whose object's name was never used before.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import spool_objects

_COLUMNS = [spool_objects.c[name] for name in ("object", "header", "size_bytes", "parts")]


class StoredPart(NamedTuple):
    """A durable part of a body.

    Attributes:
        crc32c: of its bytes.
        suffix: of its object's name, which was never used before.
    """

    crc32c: int
    suffix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyObject:
    """A file of the spool in the object store.

    Attributes:
        object: stem of its objects' names.
        header: of the update; empty for a sum.
        size_bytes: of the whole body.
        parts: that are durable, in order.
    """

    object: str
    header: bytes
    size_bytes: int
    parts: tuple[StoredPart, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the objects of its parts."""
        return [f"{self.object}.{part.suffix}" for part in self.parts]


class StoredBodies(Store):
    """Methods about files of the spool in the object store."""

    def body_object(self, file: str) -> BodyObject | None:
        """The object of a file of the spool."""
        query = sa.select(*_COLUMNS).where(spool_objects.c.file == file)
        found = self._bodies(query)
        return found[0] if found else None

    def begin_body(self, file: str, run: str, number: int, body: BodyObject) -> None:
        """Note an object before its first part, in place of the file's earlier one."""
        values: dict[str, Any] = {
            "object": body.object, "file": file, "run": run, "round": number,
            "header": body.header, "size_bytes": body.size_bytes, "parts": body.parts,
        }  # fmt: skip
        with self._write() as connection:
            connection.execute(spool_objects.delete().filter_by(file=file))
            connection.execute(spool_objects.insert().values(begun_at=time.time(), **values))

    def note_parts(self, name: str, parts: Sequence[StoredPart]) -> bool:
        """Note the parts of an object that are durable; False if it was forgotten meanwhile."""
        its = spool_objects.update().filter_by(object=name)
        return self._change(its.values(parts=[*parts])) == 1

    def forget_bodies(self, names: Collection[str]) -> None:
        """Forget objects, before they are deleted."""
        self._change(spool_objects.delete().where(spool_objects.c.object.in_(names)))

    def bodies_of_file(self, file: str) -> list[BodyObject]:
        """The objects of a file."""
        return self._bodies(sa.select(*_COLUMNS).filter_by(file=file))

    def bodies_of_round(self, run: str, number: int) -> list[BodyObject]:
        """The objects of a round."""
        return self._bodies(sa.select(*_COLUMNS).filter_by(run=run, round=number))

    def rounds_with_bodies(self) -> list[tuple[str, int]]:
        """Run and number of each round that has objects."""
        query = sa.select(spool_objects.c.run, spool_objects.c.round).distinct()
        with self._engine.connect() as connection:
            return [(run, number) for run, number in connection.execute(query)]

    def body_object_names(self) -> set[str]:
        """Stems of the names of all objects."""
        return set(self._values(sa.select(spool_objects.c.object)))

    def _bodies(self, query: sa.Select[Any]) -> list[BodyObject]:
        with self._engine.connect() as connection:
            return [
                BodyObject(
                    object=row["object"],
                    header=bytes(row["header"]),
                    size_bytes=row["size_bytes"],
                    parts=tuple(StoredPart(*part) for part in row["parts"]),
                )
                for row in connection.execute(query).mappings()
            ]
