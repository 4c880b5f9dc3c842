"""The lease by which one of several servers drives: a row of the ledger, on the database's clock.

The driver renews the row each second. Another server takes it over once it is `LEASE_S` old, and
then its epoch rises. Each transaction of a driver locks its own epoch (`FOR KEY SHARE`): renewing
does not conflict with that, taking over does. So a take-over waits for the transactions that are
about to commit, and later ones find another epoch and commit nothing.

Invariants: an epoch has one holder; a transaction commits only while its server's epoch is current.
The holder is compared, too: a database that was restored may give an epoch twice.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.version import __version__
from fedloom.server.ledger.audit_trail import Trail
from fedloom.server.ledger.migrations import VERSION
from fedloom.server.ledger.replicas.commit_warnings import refuse_warned_commits
from fedloom.server.ledger.replicas.database_clock import NOW
from fedloom.server.ledger.tables import drivers, gates

LEASE_S = 3.0
"""Age at which a lease may be taken over."""

CHANNEL = "fedloom.lease"
"""Notified when a server begins or ceases to drive."""

WAIT_MS = 2000
"""Longest wait for a lock, and longest pause within a transaction."""

IMPATIENT: Final = {
    "connect_timeout": 2, "tcp_user_timeout": 3000, "keepalives_idle": 2, "keepalives_interval": 1,
}  # fmt: skip
"""Of libpq: seconds to connect, milliseconds until what was sent is acknowledged, and seconds."""


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
        age_s: since it renewed the lease; large if it released it, negative after a step of the
            database's clock.
        version: of its software; None of an older release.
        has_gates: whether it reads what gates tell.
    """

    epoch: int
    holder: str
    name: str
    age_s: float
    version: str | None
    has_gates: bool

    @property
    def is_gone(self) -> bool:
        """Whether its lease may be taken over.

        Also if it was renewed in the future, by the clock of a database that another one replaced;
        not if it is free for nobody, see `retire`.
        """
        return self.age_s > LEASE_S or -math.inf < self.age_s < -LEASE_S


class LeaseRows:
    """The row of the driver, over a connection of its own.

    Args:
        url: of the database.

    Raises:
        sa.exc.OperationalError: each method does, if the database does not answer.
    """

    def __init__(self, url: sa.URL) -> None:
        self._engine = sa.create_engine(url, pool_pre_ping=True)
        refuse_warned_commits(self._engine)
        limit_waits(self._engine)

    def check_durable(self) -> None:
        """Check that the database keeps what it has committed.

        Raises:
            UsageError: a setting lets it lose acknowledged updates, or the URL's hosts may be
                standbys.
        """
        _check_hosts(self._engine.url)
        with self._engine.connect() as connection:
            for name in ("fsync", "synchronous_commit"):
                if (found := connection.exec_driver_sql(f"SHOW {name}").scalar()) == "off":
                    raise UsageError(
                        f"Expected a database with {name} on, got {name} = {found}: it could lose "
                        "acknowledged updates."
                    )
            names = connection.exec_driver_sql("SHOW synchronous_standby_names").scalar()
            if names and found == "local":
                raise UsageError(
                    "Expected synchronous_commit = on, as the database has synchronous standbys "
                    f"({names}), got local: a standby that takes over could lack acknowledged "
                    "updates."
                )

    def ahead_s(self) -> float:
        """Seconds by which the database's clock is ahead of this machine's."""
        with self._engine.connect() as connection:
            connection.execute(sa.select(NOW))  # the first one also connects
            before = time.time()
            found = float(connection.execute(sa.select(NOW)).scalar_one())
            return found - (before + time.time()) / 2

    def driver(self) -> Driver | None:
        """Who drives; None if nobody ever did."""
        with self._engine.connect() as connection:
            return _driver(connection, sa.select(drivers))

    def take(
        self, holder: str, name: str, *, gates: bool = False
    ) -> tuple[Lease, Driver | None] | None:
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
                now: dict[str, Any] = {
                    "holder": holder, "name": name, "renewed_at": NOW, "version": __version__,
                    "gates": gates, "ledger_version": VERSION,
                }  # fmt: skip
                change = drivers.insert() if before is None else drivers.update()
                connection.execute(change.values(epoch=lease.epoch, **now))
                _notify(connection)
        except sa.exc.IntegrityError:
            return None  # the first lease, which another server took
        return lease, before

    def renew(self, lease: Lease) -> bool:
        """Renew a lease; False if it is another server's."""
        with self._engine.begin() as connection:
            return connection.execute(_row_of(lease).values(renewed_at=NOW)).rowcount == 1

    def release(self, lease: Lease) -> None:
        """Let another server take a lease over at once, and wake those that wait for it."""
        with self._engine.begin() as connection:
            connection.execute(_row_of(lease).values(renewed_at=0.0))
            _notify(connection)

    def retire(self, lease: Lease, name: str) -> None:
        """Let no server ever take a lease over, as if one of this name drove for ever."""
        with self._engine.begin() as connection:
            connection.execute(_row_of(lease).values(renewed_at=float("inf"), name=name))

    def end_gates(self) -> None:
        """Delete the rows of all gates: none commits anything from now on."""
        with self._engine.begin() as connection:
            connection.execute(gates.delete())

    def has_gates(self) -> bool:
        """Whether any process serves devices beside the driver."""
        with self._engine.connect() as connection:
            return connection.execute(sa.select(gates.c.id).limit(1)).first() is not None

    def join(self, gate: str, name: str) -> None:
        """Note a gate: a process that serves devices beside the driver."""
        with self._engine.begin() as connection:
            row = {"id": gate, "name": name, "renewed_at": NOW, "ledger_version": VERSION}
            connection.execute(gates.insert().values(row))

    def stay(self, gate: str) -> tuple[bool, Driver | None]:
        """Renew a gate's row; False if the driver has struck it out. Also who drives."""
        with self._engine.begin() as connection:
            its = gates.update().filter_by(id=gate).values(renewed_at=NOW)
            is_there = connection.execute(its).rowcount == 1
            return is_there, _driver(connection, sa.select(drivers))

    def leave(self, gate: str) -> None:
        """Delete a gate's row: it has stopped."""
        with self._engine.begin() as connection:
            connection.execute(gates.delete().filter_by(id=gate))

    def trail(self) -> Trail:
        """The audit trail, outside the fence: for what a server notes that does not drive."""
        return Trail(self._engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


def _row_of(lease: Lease) -> sa.Update:
    return drivers.update().filter_by(epoch=lease.epoch, holder=lease.holder)


def _notify(connection: sa.Connection) -> None:
    """Tell all replicas of a change, at the commit of this small transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


def limit_waits(engine: sa.Engine) -> None:
    """End what waits in vain in an engine's new connections.

    Waits for locks, transactions that stand still, and connections over a network that is cut; the
    URL may say otherwise of the last.
    """
    sa.event.listen(engine, "do_connect", _be_impatient)
    sa.event.listen(engine, "connect", _set_limits)
    sa.event.listen(engine, "handle_error", _as_operational)


def _be_impatient(_dialect: object, _record: object, _args: object, options: Any) -> None:
    for name, value in IMPATIENT.items():
        options.setdefault(name, value)


def _set_limits(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {WAIT_MS}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {WAIT_MS}")
    connection.commit()


def _as_operational(context: sa.engine.ExceptionContext) -> sa.exc.OperationalError | None:
    """The drivers call it an internal error that a session was ended, or is a standby's now.

    It is one to try again, with another connection.
    """
    error = context.original_exception
    state = getattr(error, "sqlstate", "") or getattr(error, "pgcode", "")
    if state not in ("25P03", "25006"):
        return None
    assert isinstance(error, Exception)
    context.is_disconnect = True
    return sa.exc.OperationalError(context.statement, context.parameters, error)


def _check_hosts(url: sa.URL) -> None:
    """Check that a URL of several hosts leads to the primary.

    Raises:
        UsageError: it may lead to a standby, whose rows are old and cannot be changed.
    """
    hosts = url.normalized_query.get("host", ())
    wanted = url.query.get("target_session_attrs")
    if (len(hosts) > 1 or "," in str(url.host)) and wanted not in ("read-write", "primary"):
        raise UsageError(
            "Expected target_session_attrs=read-write in `database`, which has several hosts, got "
            f"{wanted or 'none'}: a standby would answer."
        )


def _driver(connection: sa.Connection, query: sa.Select[Any]) -> Driver | None:
    with_age = query.with_only_columns(
        drivers.c.epoch,
        drivers.c.holder,
        drivers.c.name,
        drivers.c.version,
        drivers.c.gates,
        (NOW - drivers.c.renewed_at).label("age"),
    )
    row = connection.execute(with_age).first()
    if row is None:
        return None
    age_s, has_gates = float(row.age), bool(row.gates)
    return Driver(row.epoch, row.holder, row.name, age_s, row.version, has_gates)
