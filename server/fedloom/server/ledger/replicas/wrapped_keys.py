"""Keys of a server, encrypted: each replica reads them here.

Invariant: changes take turns, so a change sees all keys that it must agree with.
"""

import time
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import wrapped_keys

Rows = Mapping[str, bytes]
"""Encrypted keys by name."""


class WrappedKeys(Store):
    """Methods about encrypted keys."""

    def wrapped_keys(self) -> Rows:
        """The encrypted keys by name."""
        with self._engine.connect() as connection:
            return _read(connection)

    def change_wrapped_keys(self, change: Callable[[Rows], Rows]) -> None:
        """Write encrypted keys in place of those of their names, in one transaction.

        Args:
            change: given all keys that are there, returns those to write; what it raises changes
                nothing.
        """
        with self._write() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has a single writer
                table = wrapped_keys.name
                connection.exec_driver_sql(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            for name, sealed in change(_read(connection)).items():
                connection.execute(wrapped_keys.delete().filter_by(name=name))
                values = {"name": name, "sealed": sealed, "written_at": time.time()}
                connection.execute(wrapped_keys.insert().values(values))


def _read(connection: sa.Connection) -> Rows:
    found = connection.execute(sa.select(wrapped_keys.c.name, wrapped_keys.c.sealed))
    return {name: bytes(sealed) for name, sealed in found}
