"""Migrates a database of any earlier version to the current schema.

New tables, indexes and nullable columns need no step: they are added where they are missing, so the
schema is always that of `fedloom.server.ledger.tables`. Steps change values, in one transaction.
All is under the database's write lock, so two servers that open one database take turns; after a
crash, the next one continues.

Several servers of one ledger are upgraded one after another: expand, then contract. A step says
from which version on servers work with its result. Such a server opens the newer ledger, and
leaves its schema alone. A step whose result a live server could not read waits for its end.

Invariants: steps are only appended; the version is the number of steps done. No step is done while
a server of replicas lives that cannot read its result.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.ledger.replicas.database_clock import NOW
from fedloom.server.ledger.tables import (
    clients,
    cohorts,
    drivers,
    gates,
    meta,
    models,
    populations,
    runs,
    updates,
    versions,
)

log = logging.getLogger(__name__)

_LOCK = 0x666C6F6D  # arbitrary lock id, for PostgreSQL

_WAIT_MS, _TRIES, _PAUSE_S = 2000, 15, 0.5
"""Of a migration on PostgreSQL: the longest wait for a lock, behind which all others wait, too; how
often it is tried; and the pause before the next try."""

_LIVE_S: Final = 5.0
"""Age of a server's row from which on the server does not live: a gate's; a driver's is less."""

_UNNAMED: Final = 4
"""Version of servers from before their rows named it."""


class OlderServerError(UnavailableError):
    """A server lives that could not read the ledger of this version.

    Attributes:
        name: of its machine.
    """

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        super().__init__(
            f"Expected that no older server uses this ledger while it is upgraded to version "
            f"{VERSION}, got {name}, which reads versions to {version}: stop it."
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A change of values.

    Attributes:
        change: makes it within a transaction.
        readable_from: the least version whose servers work with its result, and with rows that
            servers of earlier versions write afterwards: the step's own, or an earlier one.
    """

    change: Callable[[sa.Connection], None]
    readable_from: int


def _keep_states(connection: sa.Connection) -> None:
    """Store a run's current strategy state with its last model, so that a rollback can use it."""
    last = (
        sa.select(models.c.run, sa.func.max(models.c.round).label("round"))
        .group_by(models.c.run)
        .subquery()
    )
    found = connection.execute(
        sa.select(last.c.run, last.c.round, runs.c.strategy_state)
        .join(runs, runs.c.id == last.c.run)
        .join(
            models,
            sa.and_(
                models.c.run == last.c.run,
                models.c.round == last.c.round,
                models.c.digest == runs.c.model,
            ),
        )
    ).all()
    for run, number, state in found:
        connection.execute(
            models.update()
            .where(models.c.run == run, models.c.round == number)
            .values(state=state or "null")
        )


def _count_in(connection: sa.Connection) -> None:
    """Store in every update the round whose sum it is in, for an index."""
    connection.execute(
        updates.update().where(updates.c.counts_in.is_(None)).values(counts_in=updates.c.round)
    )


def _keep_specs(connection: sa.Connection) -> None:
    """Give runs the setting that keeps their sums, and drop what no run may set any more."""
    for run, found in connection.execute(sa.select(runs.c.id, runs.c.spec)).all():
        spec = {**found, "sum_bits": 64}  # as before sums were exact
        for table, name, is_gone in (
            ("aggregation", "smoothing", True),  # of the geometric median's iterations
            ("cohort", "quorum", spec.get("privacy", {}).get("sampling", "none") != "none"),
        ):
            kept = spec.get(table, {})
            if is_gone and name in kept:
                spec[table] = {key: value for key, value in kept.items() if key != name}
        connection.execute(runs.update().where(runs.c.id == run).values(spec=spec))


def _keep_populations(connection: sa.Connection) -> None:
    """Store whom the rounds of earlier runs could draw.

    Who was present at a secret draw was not stored, so every client of the ledger counts.
    """
    members = sa.select(cohorts.c.run, cohorts.c.client).distinct()
    connection.execute(populations.insert().from_select(["run", "client"], members))
    for run, spec in connection.execute(sa.select(runs.c.id, runs.c.spec)).all():
        if spec.get("privacy", {}).get("sampling", "none") != "none":
            known = sa.select(populations.c.client).where(populations.c.run == run)
            others = sa.select(sa.literal(run), clients.c.name).where(clients.c.name.not_in(known))
            connection.execute(populations.insert().from_select(["run", "client"], others))


STEPS: tuple[Step, ...] = (
    Step(_keep_states, 1),
    Step(_count_in, 2),
    Step(_keep_specs, 3),
    Step(_keep_populations, 4),
)

VERSION = len(STEPS)


def readable_from(steps: Sequence[Step]) -> int:
    """The least version whose servers work with the result of all steps."""
    version = len(steps)
    while version and all(step.readable_from < version for step in steps[version - 1 :]):
        version -= 1
    return version


def migrate(engine: sa.Engine) -> None:
    """Migrate a database to this version; one that is current, or newer, is only read.

    Raises:
        UsageError: the database is of a newer version, which this one does not read.
        OlderServerError: a server lives that could not read the result.
    """
    for left in reversed(range(_TRIES)):
        try:
            _migrate(engine)
        except sa.exc.OperationalError as error:
            if not left or not _is_in_the_way(error):
                raise
            log.warning("the ledger is upgraded when others have released it: %s", error.orig)
            time.sleep(_PAUSE_S)
        else:
            return


def _migrate(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        version = _version(connection)
        if version > VERSION or (version == VERSION and not _is_behind(connection)):
            return
        _check_alone(connection, version)
        shared = connection.dialect.name == "postgresql" and bool(version)
    if shared:
        _expand(engine)
    with engine.connect() as connection:
        _lock(connection)
        empty = not sa.inspect(connection).has_table("runs")
        found = VERSION if empty else _version(connection)
        if found > VERSION:
            return  # by another server, meanwhile
        _check_alone(connection, found, locks=True)
        _add_missing(connection)
        for step in STEPS[found:]:
            step.change(connection)
        connection.execute(versions.delete())
        row = {"version": VERSION, "readable_from": readable_from(STEPS)}
        connection.execute(versions.insert().values(row))
        connection.commit()


def _expand(engine: sa.Engine) -> None:
    """Add what the database lacks in a transaction each: other servers use it meanwhile.

    A transaction with two locked tables would wait for one that has locked them the other way
    round, and that one for it.
    """
    while True:
        with engine.connect() as connection:
            _lock(connection)
            missing = _missing(connection)
            if not missing:
                return
            missing[0](connection)
            connection.commit()


def check_readable(connection: sa.Connection) -> None:
    """Check that this server can work with a ledger that another one may have upgraded.

    Raises:
        UsageError: it is of a newer version, which this one does not read.
    """
    _version(connection)


def _is_in_the_way(error: sa.exc.DBAPIError) -> bool:
    """Whether PostgreSQL has ended a statement for locks of others: a timeout, or a deadlock."""
    code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return code in ("55P03", "40P01")


def _version(connection: sa.Connection) -> int:
    """Number of steps done; 0 for a database older than versions."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(versions.name):
        return 0
    found: int = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar() or 0
    if found > VERSION:
        least = None
        if not _columns(inspector, versions):
            least = connection.execute(sa.select(versions.c.readable_from)).scalar()
        if least is None or least > VERSION:
            raise UsageError(
                f"Expected a ledger of version {VERSION} or earlier, got version {found}: a newer "
                "fedloom wrote it. Install that version, or restore an older backup."
            )
    return found


def _check_alone(connection: sa.Connection, found: int, *, locks: bool = False) -> None:
    """Check that every live server can read the result of the steps after a version.

    Args:
        connection: of the migration.
        found: version of the ledger.
        locks: whether to let no server begin to live before the transaction ends.
    """
    least = readable_from(STEPS)
    if least <= found or connection.dialect.name != "postgresql":  # which replicas use
        return
    inspector = sa.inspect(connection)
    for table in (drivers, gates):
        if not inspector.has_table(table.name):
            continue
        if locks:
            connection.exec_driver_sql(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE")
        version: sa.ColumnElement[int] = sa.literal(_UNNAMED)
        if not _columns(inspector, table):
            version = sa.func.coalesce(table.c.ledger_version, _UNNAMED)
        live = sa.select(table.c.name, version).where(table.c.renewed_at > NOW - _LIVE_S)
        older = connection.execute(live.where(version < least)).first()
        if older is not None:
            raise OlderServerError(*older)


def _lock(connection: sa.Connection) -> None:
    """Begin an exclusive transaction."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_WAIT_MS}")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def _is_behind(connection: sa.Connection) -> bool:
    inspector = sa.inspect(connection)
    known = set(inspector.get_table_names())
    return not known.issuperset(meta.tables) or any(
        _columns(inspector, table) or _indexes(inspector, table) for table in meta.sorted_tables
    )


def _columns(inspector: sa.Inspector, table: sa.Table) -> list[sa.Column[object]]:
    """Columns of a table that the database lacks."""
    known = {column["name"] for column in inspector.get_columns(table.name)}
    return [column for column in table.columns if column.name not in known]


def _indexes(inspector: sa.Inspector, table: sa.Table) -> list[sa.Index]:
    """Indexes of a table that the database lacks."""
    known = {index["name"] for index in inspector.get_indexes(table.name)}
    return [index for index in table.indexes if index.name not in known]


def _add_missing(connection: sa.Connection) -> None:
    for add in _missing(connection):
        add(connection)


def _missing(connection: sa.Connection) -> list[Callable[[sa.Connection], object]]:
    """What adds each table, column and index that the database lacks; each locks one table."""
    inspector = sa.inspect(connection)
    found: list[Callable[[sa.Connection], object]] = []
    for table in meta.sorted_tables:
        if not inspector.has_table(table.name):
            found.append(partial(table.create, checkfirst=True))
            continue
        found += [partial(_add_column, table, each) for each in _columns(inspector, table)]
        found += [partial(each.create, checkfirst=True) for each in _indexes(inspector, table)]
    return found


def _add_column(table: sa.Table, column: sa.Column[object], connection: sa.Connection) -> None:
    kind = column.type.compile(connection.dialect)
    name = connection.dialect.identifier_preparer.format_column(column)
    connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))
