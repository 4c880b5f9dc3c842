"""Files of the spool in the object store: bodies of updates in parts, and sums of sessions.

A row names the parts that are durable, in order; it is written before its first part.

Invariant: of each file of the spool there is one row, whose object's name was never used before.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger.masking.sessions import BODY
from fedloom.server.ledger.store import Store, is_there
from fedloom.server.ledger.tables import masking_messages, spool_objects, updates

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
        """Note an object before its first part, in place of the file's earlier one.

        Raises:
            Refusal: BUSY, another server has accepted the update meanwhile.
        """
        with self._write() as connection:
            _lock(connection, file)
            connection.execute(spool_objects.delete().filter_by(file=file))
            # Now: who accepts an update holds its body's row, so the deletion waited for that.
            if _is_accepted(connection, file, run, number):
                raise Refusal(Code.BUSY, "This update was accepted meanwhile: try again.")
            connection.execute(spool_objects.insert().values(_values(file, run, number, body)))

    def replace_body(self, file: str, run: str, number: int, body: BodyObject) -> list[BodyObject]:
        """Note an object whose parts are all durable; returns those of the file that it replaces.

        For a server that is moved: the update may be accepted already.
        """
        with self._write() as connection:
            found = _bodies(connection, sa.select(*_COLUMNS).filter_by(file=file))
            connection.execute(spool_objects.delete().filter_by(file=file))
            connection.execute(spool_objects.insert().values(_values(file, run, number, body)))
        return found

    def note_parts(self, name: str, parts: Sequence[StoredPart]) -> bool:
        """Note one more durable part of an object.

        Returns:
            False if the object was forgotten meanwhile, or another upload has added parts.
        """
        its = spool_objects.select().filter_by(object=name).with_for_update()
        with self._write() as connection:
            found = connection.execute(its).mappings().first()
            if found is None or [StoredPart(*part) for part in found["parts"]] != [*parts[:-1]]:
                return False
            change = spool_objects.update().filter_by(object=name)
            connection.execute(change.values(parts=[*parts]))
        return True

    def give_up_body(self, name: str) -> bool:
        """Forget the object of an upload that ended; False for one whose update was accepted."""
        with self._write() as connection:
            its = spool_objects.select().filter_by(object=name).with_for_update()
            found = connection.execute(its).mappings().first()
            if found is None or _is_accepted(
                connection, found["file"], found["run"], found["round"]
            ):
                return False
            connection.execute(spool_objects.delete().filter_by(object=name))
        return True

    def drop_unaccepted(self, file: str, run: str, number: int) -> list[BodyObject]:
        """Forget the objects of a file, unless its update was accepted; returns those."""
        with self._write() as connection:
            its = sa.select(*_COLUMNS).filter_by(file=file).with_for_update()
            found = _bodies(connection, its)
            if not found or _is_accepted(connection, file, run, number):
                return []
            names = [body.object for body in found]
            connection.execute(spool_objects.delete().where(spool_objects.c.object.in_(names)))
        return found

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

    def body_objects(self) -> list[tuple[str, BodyObject]]:
        """The file and the object of each body and sum."""
        query = sa.select(spool_objects.c.file, *_COLUMNS)
        with self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [(row["file"], _body(row)) for row in rows]

    def body_object_names(self) -> set[str]:
        """Stems of the names of all objects."""
        return set(self._values(sa.select(spool_objects.c.object)))

    def _bodies(self, query: sa.Select[Any]) -> list[BodyObject]:
        with self._engine.connect() as connection:
            return _bodies(connection, query)


def _values(file: str, run: str, number: int, body: BodyObject) -> dict[str, Any]:
    return {
        "object": body.object, "file": file, "run": run, "round": number, "header": body.header,
        "size_bytes": body.size_bytes, "parts": body.parts, "begun_at": time.time(),
    }  # fmt: skip


def _bodies(connection: sa.Connection, query: sa.Select[Any]) -> list[BodyObject]:
    return [_body(row) for row in connection.execute(query).mappings()]


def _body(row: sa.RowMapping) -> BodyObject:
    return BodyObject(
        object=row["object"],
        header=bytes(row["header"]),
        size_bytes=row["size_bytes"],
        parts=tuple(StoredPart(*part) for part in row["parts"]),
    )


def _lock(connection: sa.Connection, file: str) -> None:
    """Wait for another server that begins a body of this file: neither would see the other's row.

    SQLite has a single writer.
    """
    if connection.dialect.name == "postgresql":
        number = sa.func.hashtextextended(file, 0)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))


def _is_accepted(connection: sa.Connection, file: str, run: str, number: int) -> bool:
    """Whether the update of a body was accepted: by its row, or masked, by its message."""
    its: dict[str, str | int] = {"run": run, "round": number}
    client = file.removeprefix(f"{run}.{number}.")
    return is_there(connection, updates, **its, file=file) or is_there(
        connection, masking_messages, **its, client=client, phase=BODY
    )
