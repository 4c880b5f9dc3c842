"""Migrates a database of any earlier version to the current schema.

New tables, indexes and nullable columns need no step: they are added where they are missing, so the
schema is always that of `fedloom.server.ledger.tables`. Steps change values. A migration is one
transaction under the database's write lock, so two servers that open one database take turns, and
a crash changes nothing.

Invariant: steps are only appended; the version is the number of steps done.
"""

from collections.abc import Callable

import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger.tables import (
    clients,
    cohorts,
    meta,
    models,
    populations,
    runs,
    updates,
    versions,
)

_LOCK = 0x666C6F6D  # arbitrary lock id, for PostgreSQL


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


STEPS: tuple[Callable[[sa.Connection], None], ...] = (
    _keep_states,
    _count_in,
    _keep_specs,
    _keep_populations,
)

VERSION = len(STEPS)


def migrate(engine: sa.Engine) -> None:
    """Migrate a database to this version; a current one is only read.

    Raises:
        UsageError: the database is of a newer version.
    """
    with engine.connect() as connection:
        if _version(connection) == VERSION and not _is_behind(connection):
            return
    with engine.connect() as connection:
        _lock(connection)
        empty = not sa.inspect(connection).has_table("runs")
        found = VERSION if empty else _version(connection)
        _add_missing(connection)
        for step in STEPS[found:]:
            step(connection)
        connection.execute(versions.delete())
        connection.execute(versions.insert().values(version=VERSION))
        connection.commit()


def _version(connection: sa.Connection) -> int:
    """Number of steps done; 0 for a database older than versions."""
    if not sa.inspect(connection).has_table(versions.name):
        return 0
    found: int = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar() or 0
    if found > VERSION:
        raise UsageError(
            f"Expected a ledger of version {VERSION} or earlier, got version {found}: a newer "
            "fedloom wrote it. Install that version, or restore an older backup."
        )
    return found


def _lock(connection: sa.Connection) -> None:
    """Begin an exclusive transaction."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
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
    inspector = sa.inspect(connection)
    there = [table for table in meta.sorted_tables if inspector.has_table(table.name)]
    meta.create_all(connection)
    for table in there:
        for column in _columns(inspector, table):
            kind = column.type.compile(connection.dialect)
            name = connection.dialect.identifier_preparer.format_column(column)
            connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))
        for index in _indexes(inspector, table):
            index.create(connection)
