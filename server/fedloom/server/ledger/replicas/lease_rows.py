"""The lease by which one of several servers drives: a row of the ledger, on the database's clock.

The driver renews the row each second. Another server takes it over once it is `LEASE_S` old, and
then its epoch rises. Each transaction of a driver locks its own epoch (`FOR KEY SHARE`): renewing
does not conflict with that, taking over does. So a take-over waits for the transactions that are
about to commit, and later ones find another epoch and commit nothing.

Invariants: an epoch has one holder; a transaction commits only while its server's epoch is current.
The holder is compared, too: a database that was restored may give an epoch twice.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.ledger.audit_trail import Trail
from fedloom.server.ledger.tables import drivers

LEASE_S = 3.0
"""Age at which a lease may be taken over."""

WAIT_MS = 2000
"""Longest wait for a lock, and longest pause within a transaction."""

_IMPATIENT = {"connect_timeout": 2, "tcp_user_timeout": 3000, "keepalives_idle": 2}
"""Of libpq: seconds to connect, milliseconds until sent bytes are acknowledged, and seconds."""

_NOW = sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Float)


class LeaseLostError(UnavailableError):
    """Another server drives; what this one was about to commit was rolled back."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive.

    Attributes:
        epoch: its number; each take-over has the next one.
        holder: id of the server's process.
    """

    epoch: int
    holder: str

    def check(self, connection: sa.Connection) -> None:
        """The last step of each transaction; the epoch cannot pass until its commit.

        Raises:
            LeaseLostError: another server drives.
        """
        ours = sa.select(sa.literal(1)).select_from(drivers)
        ours = ours.filter_by(epoch=self.epoch, holder=self.holder)
        if connection.execute(ours.with_for_update(read=True, key_share=True)).first() is None:
            raise LeaseLostError(
                f"Another server has driven since epoch {self.epoch}: nothing was committed."
            )


@dataclass(frozen=True, slots=True)
class Driver:
    """Who drives.

    Attributes:
        epoch: of its lease.
        holder: id of its process.
        name: of its machine.
        age_s: since it renewed the lease; large if it released it.
    """

    epoch: int
    holder: str
    name: str
    age_s: float

    @property
    def is_gone(self) -> bool:
        """Whether its lease may be taken over."""
        return self.age_s > LEASE_S


class LeaseRows:
    """The row of the driver, over a connection of its own.

    Args:
        url: of the database.

    Raises:
        sa.exc.OperationalError: each method does, if the database does not answer.
    """

    def __init__(self, url: sa.URL) -> None:
        self._engine = sa.create_engine(url, connect_args=_IMPATIENT, pool_pre_ping=True)
        limit_waits(self._engine)

    def check_durable(self) -> None:
        """Check that the database keeps what it has committed.

        Raises:
            UsageError: a setting lets it lose acknowledged updates.
        """
        with self._engine.connect() as connection:
            for name in ("fsync", "synchronous_commit"):
                if (found := connection.exec_driver_sql(f"SHOW {name}").scalar()) == "off":
                    raise UsageError(
                        f"Expected a database with {name} on, got {name} = {found}: it could lose "
                        "acknowledged updates."
                    )

    def driver(self) -> Driver | None:
        """Who drives; None if nobody ever did."""
        with self._engine.connect() as connection:
            return _driver(connection, sa.select(drivers))

    def take(self, holder: str, name: str) -> tuple[Lease, Driver | None] | None:
        """Take the lease over if it is free.

        Returns:
            The lease, and who had it before; None if another server holds it.
        """
        found = self.driver()
        if found is not None and not found.is_gone:
            return None  # without a lock, which would wait for the driver's transactions
        try:
            with self._engine.begin() as connection:
                before = _driver(connection, sa.select(drivers).with_for_update())
                if before is not None and not before.is_gone:
                    return None
                lease = Lease(1 if before is None else before.epoch + 1, holder)
                now: dict[str, Any] = {"holder": holder, "name": name, "renewed_at": _NOW}
                change = drivers.insert() if before is None else drivers.update()
                connection.execute(change.values(epoch=lease.epoch, **now))
        except sa.exc.IntegrityError:
            return None  # the first lease, which another server took
        return lease, before

    def renew(self, lease: Lease) -> bool:
        """Renew a lease; False if it is another server's."""
        return self._note(lease, _NOW)

    def release(self, lease: Lease) -> None:
        """Let another server take a lease over at once."""
        self._note(lease, 0.0)

    def trail(self) -> Trail:
        """The audit trail, outside the fence: for what a server notes that does not drive."""
        return Trail(self._engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _note(self, lease: Lease, renewed_at: Any) -> bool:
        its = drivers.update().filter_by(epoch=lease.epoch, holder=lease.holder)
        with self._engine.begin() as connection:
            return connection.execute(its.values(renewed_at=renewed_at)).rowcount == 1


def limit_waits(engine: sa.Engine) -> None:
    """End waits for locks, and transactions that stand still, in an engine's new connections."""
    sa.event.listen(engine, "connect", _set_limits)
    sa.event.listen(engine, "handle_error", _as_operational)


def _set_limits(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {WAIT_MS}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {WAIT_MS}")
    connection.commit()


def _as_operational(context: sa.engine.ExceptionContext) -> sa.exc.OperationalError | None:
    """The drivers call a session that was ended an internal error; it is one to try again."""
    error = context.original_exception
    if "25P03" not in (getattr(error, "sqlstate", ""), getattr(error, "pgcode", "")):
        return None
    assert isinstance(error, Exception)
    return sa.exc.OperationalError(context.statement, context.parameters, error)


def _driver(connection: sa.Connection, query: sa.Select[Any]) -> Driver | None:
    with_age = query.with_only_columns(
        drivers.c.epoch,
        drivers.c.holder,
        drivers.c.name,
        (_NOW - drivers.c.renewed_at).label("age"),
    )
    row = connection.execute(with_age).first()
    return None if row is None else Driver(row.epoch, row.holder, row.name, float(row.age))
