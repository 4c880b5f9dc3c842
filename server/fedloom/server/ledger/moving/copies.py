"""Copies a whole ledger to another database, and compares the two.

A copy is one transaction of the target: it has all rows or none. Tables are compared by the sum of
the digests of their rows, as each database returns them: the two may sort texts differently.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any, Final

import sqlalchemy as sa

from fedloom.server.ledger.access.tables import audit
from fedloom.server.ledger.lists.order import each
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import (
    drivers,
    gates,
    inbox,
    mail,
    meta,
    model_objects,
    spool_objects,
    store_claims,
    versions,
    wrapped_keys,
)

OF_THE_STORE: Final = (model_objects, spool_objects, store_claims)
"""What says which objects of a store count."""

_OWN: Final = (versions, drivers, gates, inbox, mail, wrapped_keys)
"""What belongs to a database, not to its content."""

_AT_ONCE: Final = 500

Digests = dict[str, tuple[int, str]]
"""By table: the number of its rows, and the sum of their SHA-256 modulo 2^256, hexadecimal."""


class Copies(Store):
    """Methods about the ledger as a whole."""

    def digests(self, tables: Collection[sa.Table], up_to: int) -> Digests:
        """The digests of tables; of the audit trail, of the entries up to a number."""
        return {table.name: self._digest(table, up_to) for table in tables}

    def copy_from(self, source: "Copies", tables: Collection[sa.Table]) -> None:
        """Insert all rows of another ledger's tables, in one transaction."""
        with self._write() as connection:
            for table in tables:
                for rows in source._in_groups(table):  # noqa: SLF001 - same class
                    connection.execute(table.insert(), rows)
                _continue_numbers(connection, table)

    def delete_store_rows(self) -> None:
        """Forget every object of the store: models are in files."""
        with self._write() as connection:
            for table in OF_THE_STORE:
                connection.execute(table.delete())

    def _in_groups(self, table: sa.Table) -> Iterator[list[dict[str, Any]]]:
        group: list[dict[str, Any]] = []
        for row in each(self._engine, sa.select(table)):
            group.append(dict(row))
            if len(group) == _AT_ONCE:
                yield group
                group = []
        if group:
            yield group

    def _digest(self, table: sa.Table, up_to: int) -> tuple[int, str]:
        query = sa.select(table)
        if table is audit:
            query = query.where(audit.c.id <= up_to)
        count, total = 0, 0
        for row in each(self._engine, query):
            count, total = count + 1, (total + _row_digest(row)) % (1 << 256)
        return count, f"{total:064x}"


def tables_of(*, with_store: bool) -> list[sa.Table]:
    """The tables of a ledger's content, each after those it refers to.

    Args:
        with_store: whether to include which objects of the store count.
    """
    left_out = _OWN if with_store else (*_OWN, *OF_THE_STORE)
    return [table for table in meta.sorted_tables if table not in left_out]


def _row_digest(row: sa.RowMapping) -> int:
    values = {
        name: value.hex() if isinstance(value, bytes | memoryview) else value
        for name, value in row.items()
    }
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()
    return int.from_bytes(digest, "big")


def _continue_numbers(connection: sa.Connection, table: sa.Table) -> None:
    """Let a table's next number follow the copied ones; SQLite does that by itself."""
    column = table.autoincrement_column
    if column is None or connection.dialect.name != "postgresql":
        return
    sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
    last = sa.select(sa.func.max(column)).scalar_subquery()
    connection.execute(sa.select(sa.func.setval(sequence, sa.func.coalesce(last, 1))))
