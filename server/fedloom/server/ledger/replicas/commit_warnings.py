"""A commit that PostgreSQL answers with a warning counts as not answered.

With synchronous replication a commit waits for the standby. If that wait is cancelled, as by
`pg_cancel_backend`, PostgreSQL answers COMMIT as ever, with a warning: what was written is visible,
and is lost with the primary.
"""

import weakref
from typing import Any

import sqlalchemy as sa


def refuse_warned_commits(engine: sa.Engine) -> None:
    """Raise an `OperationalError` where a commit of an engine of PostgreSQL brings a warning."""
    dialect = engine.dialect
    if dialect.name != "postgresql":
        return
    came: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
    commit = dialect.do_commit

    def listen(connection: Any, _record: object) -> None:
        warnings = came[connection] = []
        if hasattr(connection, "add_notice_handler"):  # psycopg; psycopg2 keeps `notices`
            connection.add_notice_handler(lambda said: _note(said, warnings))

    def do_commit(pooled: Any) -> None:
        connection = getattr(pooled, "dbapi_connection", pooled)
        warnings = came.get(connection, [])
        notices = getattr(connection, "notices", warnings)
        del warnings[:], notices[:]
        commit(pooled)
        found = [each for each in notices if notices is warnings or each.startswith("WARNING")]
        if found:
            raise dialect.loaded_dbapi.OperationalError(
                f"Expected a commit without a warning, got: {found[0].strip()} It may be lost."
            )

    sa.event.listen(engine, "connect", listen)
    dialect.do_commit = do_commit  # type: ignore[assignment, method-assign] # no event is later


def _note(said: Any, warnings: list[str]) -> None:
    if said.severity_nonlocalized == "WARNING":
        warnings.append(f"{said.message_primary}: {said.message_detail or ''}")
