"""The database of the ledger: opened and migrated, read and written in transactions."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.engine import RoundKind
from fedloom.server.ledger.access.accounts import Accounts
from fedloom.server.ledger.audit_trail import HEAD_FILE, Trail
from fedloom.server.ledger.lists.order import each
from fedloom.server.ledger.migrations import check_readable, migrate
from fedloom.server.ledger.replicas.commit_warnings import refuse_warned_commits
from fedloom.server.ledger.replicas.doorbell import Doorbell
from fedloom.server.ledger.replicas.lease_rows import LeaseRows, limit_waits
from fedloom.server.ledger.tables import clients, cohorts, rounds, updates

Row = Mapping[str, Any]
"""Columns to write."""

RowT = TypeVar("RowT")

EVALUATE = RoundKind.EVALUATE.value

NO_STATE = "null"
"""Value of `models.state` for a strategy without state yet."""

counted_in = updates.c.counts_in
"""The round whose sum an update is in."""

ITS_UPDATE = sa.and_(*(updates.c[name] == cohorts.c[name] for name in ("run", "round", "client")))
"""Joins a member of a cohort with its update."""

UPDATE_COLUMNS = [
    updates.c.accepted_at, updates.c.counts_in, updates.c.staleness, updates.c.weight,
    updates.c.norm, updates.c.size_bytes, updates.c.training, updates.c.evaluation,
    updates.c.devices, updates.c.members,
]  # fmt: skip
"""What a member's row holds of its update."""


def its_key(*columns: str) -> dict[str, sa.BindParameter[Any]]:
    """Parameters `its_…` for the key of a row, in statements that are made once.

    To make a statement anew takes SQLAlchemy 0.2 ms, and to execute a small one 0.05. An update or
    insert without values sets the columns that are among its parameters.
    """
    return {name: sa.bindparam(f"its_{name}") for name in columns}


def counted(name: str) -> sa.ColumnElement[int]:
    """A number of a round's summary: of 64 bits, since bytes exceed 32."""
    return sa.cast(rounds.c.summary[name].as_string(), sa.BigInteger)


def its_round(table: sa.Table) -> sa.ColumnElement[bool]:
    """Joins a row of a table with its round."""
    return sa.and_(rounds.c.run == table.c.run, rounds.c.number == table.c.round)


def failed_evaluating() -> sa.ColumnElement[bool]:
    """Whether the latest failure of a client was in a round that only evaluated."""
    at = sa.and_(rounds.c.run == clients.c.failed_run, rounds.c.number == clients.c.failed_round)
    return sa.select(sa.literal(1)).where(at, rounds.c.kind == EVALUATE).exists()


def after_success(those: sa.ColumnElement[bool], *, evaluating: bool) -> sa.Update:
    """A statement: an update of those clients is accepted; see `fedloom.server.client_failures`.

    Args:
        those: condition of rows of `clients`.
        evaluating: whether the update is of a round that only evaluated.
    """
    halved = clients.update().where(those, clients.c.failures > 0)
    if evaluating:
        halved = halved.where(failed_evaluating())
    return halved.values(failures=clients.c.failures // 2)


def unavailable(error: sa.exc.DBAPIError) -> UnavailableError:
    """An error of the database in plain words: that its disk is full, or what it says."""
    said = str(error.orig).strip()
    if "disk is full" in said or "No space left" in said:
        return UnavailableError(
            f"The disk of the ledger is full: free some space, and try again. [{said}]"
        )
    return UnavailableError(f"Expected an answer of the ledger's database, got: {said}")


class Store:
    """A database of the ledger's tables, by its SQLAlchemy URL.

    Attributes:
        accounts: of operators.
        ahead_s: by which `wall` is ahead of this machine's clock.
        trail: the audit trail.

    Raises:
        UsageError: the URL is not valid, the database's driver is not installed, or the ledger is
            of a newer version.
        UnavailableError: the database does not answer.
        OlderServerError: it is to be upgraded, and a server lives that could not read it then.
    """

    def __init__(self, url: str) -> None:
        # The URL is not quoted: it may hold a password.
        try:
            self._engine = sa.create_engine(url)
            if self._engine.dialect.name == "sqlite":
                sa.event.listen(self._engine, "connect", _configure_sqlite)
            refuse_warned_commits(self._engine)
            self._migrate()
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
            reason = str(error).rstrip(".")
            raise UsageError(f"Expected `database` as an SQLAlchemy URL: {reason}.") from None
        except ModuleNotFoundError as error:
            raise UsageError(
                f"Expected the driver of the database, got none: pip install {error.name}"
            ) from None
        except sa.exc.OperationalError as error:
            raise unavailable(error) from None
        self.ahead_s = 0.0
        self.accounts = Accounts(self._engine)
        self.trail = Trail(self._engine)

    @classmethod
    def in_directory(cls, state_dir: Path, url: str = "") -> Self:
        """The ledger of a state directory."""
        ledger = cls(url or f"sqlite:///{state_dir / 'ledger.sqlite'}")
        ledger.trail = Trail(ledger._engine, state_dir / HEAD_FILE)
        return ledger

    def _migrate(self) -> None:
        try:
            migrate(self._engine)
        except BaseException:
            self._engine.dispose()
            raise

    def wall(self) -> float:
        """Seconds since the epoch for times of rounds, which a replica continues that takes over.

        By the database's clock where there are replicas, else by this machine's.
        """
        return time.time() + self.ahead_s

    def check_readable(self) -> None:
        """Check that this server can still work with the ledger; see `migrations`."""
        with self._engine.connect() as connection:
            check_readable(connection)

    def fence(self, check: Callable[[sa.Connection], None]) -> None:
        """Call a check in each transaction, as its last step; what it raises rolls back.

        A connection that stays within a transaction is ended soon, as is a wait for a lock: a
        server that stands still must not hold up others.
        """
        limit_waits(self._engine)
        sa.event.listen(self._engine, "commit", check)
        self._engine.dispose()  # connections without these limits

    def lease_rows(self) -> LeaseRows:
        """The rows of the server that drives, outside the fence."""
        return LeaseRows(self._engine.url)

    def doorbell(self, own: str) -> Doorbell:
        """Notifications of this process, which listens on the channel `own`."""
        return Doorbell(self._engine.url, own)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with self._engine.begin() as connection:
            yield connection

    def _change(self, statement: sa.UpdateBase) -> int:
        """Execute one statement in a transaction; returns how many rows it changed."""
        with self._write() as connection:
            return connection.execute(statement).rowcount

    def _rows(
        self, query: sa.Select[Any], kind: type[RowT], values: Row | None = None
    ) -> list[RowT]:
        with self._engine.connect() as connection:
            return read(connection, query, kind, values)

    def _each(self, query: sa.Select[Any], kind: type[RowT]) -> Iterator[RowT]:
        """The rows of a query, as `each` reads them."""
        return (kind(**row) for row in each(self._engine, query))

    def _row(
        self, query: sa.Select[Any], kind: type[RowT], values: Row | None = None
    ) -> RowT | None:
        return next(iter(self._rows(query, kind, values)), None)

    def _values(self, query: sa.Select[Any], values: Row | None = None) -> list[Any]:
        """The first column of a query."""
        with self._engine.connect() as connection:
            return list(connection.execute(query, values).scalars())

    def _pairs(self, query: sa.Select[Any]) -> dict[Any, Any]:
        """The first column of a query, and the second of each."""
        with self._engine.connect() as connection:
            return {first: second for first, second in connection.execute(query)}  # noqa: C416 - rows


def read(
    connection: sa.Connection, query: sa.Select[Any], kind: type[RowT], values: Row | None = None
) -> list[RowT]:
    """The rows of a query as `kind`, whose fields are the query's columns; `values` are its own."""
    return [kind(**row) for row in connection.execute(query, values).mappings()]


def is_there(connection: sa.Connection, table: sa.Table, **key: str | int) -> bool:
    """Whether there is a row with this key."""
    given = {f"its_{name}": value for name, value in key.items()}
    return connection.execute(_one(table, *key), given).first() is not None


@lru_cache(maxsize=64)
def _one(table: sa.Table, *columns: str) -> sa.Select[Any]:
    return sa.select(sa.literal(1)).select_from(table).filter_by(**its_key(*columns))


def _configure_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # FULL makes a commit survive a power cut, not only a kill: 4,800 commits a second measured.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
