"""Keys of a server, encrypted: each replica reads them here."""

import time

import sqlalchemy as sa

from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import wrapped_keys


class WrappedKeys(Store):
    """Methods about encrypted keys."""

    def wrapped_keys(self) -> dict[str, bytes]:
        """The encrypted keys by name."""
        found = self._pairs(sa.select(wrapped_keys.c.name, wrapped_keys.c.sealed))
        return {name: bytes(sealed) for name, sealed in found.items()}

    def write_wrapped_key(self, name: str, sealed: bytes) -> None:
        """Write an encrypted key in place of the one of that name."""
        with self._write() as connection:
            connection.execute(wrapped_keys.delete().filter_by(name=name))
            values = {"name": name, "sealed": sealed, "written_at": time.time()}
            connection.execute(wrapped_keys.insert().values(values))
