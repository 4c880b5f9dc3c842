"""Users, sessions, API tokens and login links in the ledger.

Invariants: a password session ends with its user and always has the user's current scope; removing
a user ends the user's sessions and API tokens in the same transaction; a login link opens one
session. Scopes are nested: a viewer reads, an operator also controls runs and
clients, an administrator also manages users, tokens and enrolment.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger.access.tables import api_tokens, login_links, sessions, users

IDLE_S = 2 * 3600.0
"""A session ends after this many seconds without use."""

LIFE_S = 12 * 3600.0
"""A session ends after this many seconds in any case."""

LINK_LIFE_S = 120.0

TOUCH_S = 60.0
"""Seconds between updates of `seen_at` and `used_at`."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._@+-]{0,63}")

Row = dict[str, Any]


class Scope(StrEnum):
    """A permission level. `metrics` is the lowest: it reads `/metrics` alone."""

    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Scope") -> bool:
        """Whether this scope includes `needed`.

        >>> Scope.OPERATOR.covers(Scope.VIEWER), Scope.OPERATOR.covers(Scope.ADMIN)
        (True, False)
        """
        return _RANK[self] >= _RANK[needed]


_RANK = {scope: rank for rank, scope in enumerate(Scope)}


class LastAdminError(UsageError):
    """The change would leave the server without an administrator."""


def check_name(name: str) -> str:
    """Check the name of a user or an API token, and return it.

    Raises:
        UsageError: the name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "Expected a name of up to 64 letters, digits and . _ @ + -, beginning with a letter "
            f"or a digit, got {name[:80]!r}."
        )
    return name


class Accounts:
    """Accounts in a ledger's database; each method is one transaction. Times are Unix seconds.

    Attributes:
        revision: rises with every change of identities or permissions.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.revision = 0

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        finally:
            self.revision += 1

    def _add(self, table: sa.Table, row: Row) -> bool:
        try:
            with self._write() as connection:
                connection.execute(table.insert().values(row))
        except sa.exc.IntegrityError:
            return False
        return True

    # ---- users -------------------------------------------------------------------------------

    def add_user(
        self,
        name: str,
        scope: Scope,
        password: str,
        now: float,
        studies: Sequence[str] | None = None,
    ) -> bool:
        """Add a user with a hashed password; False if the name is taken.

        With `studies`, the user sees and does nothing outside them.
        """
        row = {"name": name, "scope": scope.value, "password": password, "created_at": now}
        return self._add(users, {**row, "studies": studies})

    def users(self) -> list[Row]:
        """All users by name, without their hashes."""
        columns = [column for column in users.c if column.name != "password"]
        return self._rows(sa.select(*columns).order_by(users.c.name))

    def user(self, name: str) -> Row | None:
        """A user, with the hash of the password."""
        return self._row(sa.select(users).where(users.c.name == name))

    def set_password(self, name: str, password: str, *, keep_sessions: bool = False) -> bool:
        """Replace a hashed password, which ends the user's sessions; False without such a user."""
        with self._write() as connection:
            changed = connection.execute(
                users.update().where(users.c.name == name).values(password=password)
            )
            if not keep_sessions:
                _end_sessions(connection, name)
        return changed.rowcount == 1

    def set_scope(
        self, name: str, scope: Scope, now: float, *, keep_an_admin: bool = False
    ) -> bool:
        """Change a user's scope, from the next request on; False without such a user.

        The user's API tokens of a higher scope end.

        Raises:
            LastAdminError: `keep_an_admin` is set, and this is the last administrator.
        """
        more = [each.value for each in Scope if not scope.covers(each)]
        with self._write() as connection:
            if keep_an_admin and scope is not Scope.ADMIN:
                _check_others(connection, name)
            changed = connection.execute(
                users.update().where(users.c.name == name).values(scope=scope.value)
            )
            its = api_tokens.c.made_by == name
            _revoke(connection, now, its, api_tokens.c.scope.in_(more))
        return changed.rowcount == 1

    def remove_user(self, name: str, now: float, *, keep_an_admin: bool = False) -> bool:
        """Remove a user, with sessions and API tokens; False without such a user.

        Raises:
            LastAdminError: as `set_scope`.
        """
        with self._write() as connection:
            if keep_an_admin:
                _check_others(connection, name)
            _end_sessions(connection, name)
            _revoke(connection, now, api_tokens.c.made_by == name)
            removed = connection.execute(users.delete().where(users.c.name == name))
        return removed.rowcount == 1

    # ---- sessions ----------------------------------------------------------------------------

    def open_session(self, hashed: str, name: str, how: str, scope: Scope, now: float) -> None:
        """Store a session by the hash of its id, and delete those that have ended."""
        row = {"id": hashed, "name": name, "how": how, "scope": scope.value}
        times = {"created_at": now, "seen_at": now, "expires_at": now + LIFE_S}
        with self._write() as connection:
            connection.execute(sessions.delete().where(_is_over(now)))
            connection.execute(sessions.insert().values(**row, **times))
            connection.execute(users.update().where(users.c.name == name).values(seen_at=now))

    def session(self, hashed: str, now: float) -> Row | None:
        """A valid session, with `name`, `how` and `scope`; it counts as used."""
        row = self._row(
            sa.select(sessions, users.c.scope.label("scope_of_user"), users.c.studies)
            .join(users, users.c.name == sessions.c.name, isouter=True)
            .where(sessions.c.id == hashed, sa.not_(_is_over(now)))
        )
        if row is None:
            return None
        if row["how"] == "password":
            if row["scope_of_user"] is None:
                return None
            row["scope"] = row["scope_of_user"]
        if now - row["seen_at"] >= TOUCH_S:
            with self._engine.begin() as connection:
                connection.execute(
                    sessions.update().where(sessions.c.id == hashed).values(seen_at=now)
                )
        return row

    def end_session(self, hashed: str) -> None:
        """Log out."""
        with self._write() as connection:
            connection.execute(sessions.delete().where(sessions.c.id == hashed))

    def session_of(self, name: str) -> Row | None:
        """The latest session of a name; SSO and login links have sessions without a user."""
        query = sa.select(sessions).where(sessions.c.name == name)
        return self._row(query.order_by(sessions.c.created_at.desc()).limit(1))

    def end_sessions(self, name: str) -> int:
        """End all sessions of a name; return their number."""
        with self._write() as connection:
            return _end_sessions(connection, name)

    # ---- API tokens --------------------------------------------------------------------------

    def add_api_token(self, row: Row) -> bool:
        """Store an API token by the hash of its secret; False if its id is taken."""
        return self._add(api_tokens, row)

    def api_tokens(self) -> list[Row]:
        """All API tokens, newest first, without their hashes."""
        columns = [column for column in api_tokens.c if column.name != "secret_hash"]
        return self._rows(sa.select(*columns).order_by(api_tokens.c.created_at.desc()))

    def api_token(self, token_id: str, now: float) -> Row | None:
        """A valid API token."""
        return self._row(
            sa.select(api_tokens).where(
                api_tokens.c.id == token_id,
                api_tokens.c.revoked_at.is_(None),
                sa.or_(api_tokens.c.expires_at.is_(None), api_tokens.c.expires_at > now),
            )
        )

    def touch_api_token(self, row: Row, now: float) -> None:
        """Record when a token was last used, to the minute."""
        if row["used_at"] is None or now - row["used_at"] >= TOUCH_S:
            with self._engine.begin() as connection:
                connection.execute(
                    api_tokens.update().where(api_tokens.c.id == row["id"]).values(used_at=now)
                )

    def revoke_api_token(self, token_id: str, now: float) -> Row | None:
        """End an API token; its row, or None without such a token. A repeat changes nothing."""
        with self._write() as connection:
            _revoke(connection, now, api_tokens.c.id == token_id)
        return next((row for row in self.api_tokens() if row["id"] == token_id), None)

    # ---- login links -------------------------------------------------------------------------

    def add_link(self, hashed: str, name: str, scope: Scope, now: float) -> None:
        """Store a login link by the hash of its secret, and delete those that have expired."""
        row = {"id": hashed, "name": name, "scope": scope.value, "expires_at": now + LINK_LIFE_S}
        with self._write() as connection:
            connection.execute(login_links.delete().where(login_links.c.expires_at <= now))
            connection.execute(login_links.insert().values(row))

    def use_link(self, hashed: str, now: float) -> Row | None:
        """Use up a link: its row, or None if it is not valid."""
        with self._write() as connection:
            used = connection.execute(
                login_links.update()
                .where(
                    login_links.c.id == hashed,
                    login_links.c.used_at.is_(None),
                    login_links.c.expires_at > now,
                )
                .values(used_at=now)
            )
            if used.rowcount != 1:
                return None
            found = sa.select(login_links).where(login_links.c.id == hashed)
            return dict(connection.execute(found).mappings().one())

    # ---- reading -----------------------------------------------------------------------------

    def _rows(self, query: sa.Select[Any]) -> list[Row]:
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def _row(self, query: sa.Select[Any]) -> Row | None:
        rows = self._rows(query)
        return rows[0] if rows else None


def _check_others(connection: sa.Connection, name: str) -> None:
    others = sa.select(sa.func.count()).where(
        users.c.scope == Scope.ADMIN.value, users.c.name != name
    )
    if not connection.execute(others).scalar():
        raise LastAdminError(
            f"Expected another administrator beside {name}, got none: add one first, or use "
            "`fedloom user` on the server."
        )


def _revoke(connection: sa.Connection, now: float, *which: sa.ColumnElement[bool]) -> None:
    valid = api_tokens.update().where(api_tokens.c.revoked_at.is_(None), *which)
    connection.execute(valid.values(revoked_at=now))


def _is_over(now: float) -> sa.ColumnElement[bool]:
    return sa.or_(sessions.c.expires_at <= now, sessions.c.seen_at <= now - IDLE_S)


def _end_sessions(connection: sa.Connection, name: str) -> int:
    return connection.execute(sessions.delete().where(sessions.c.name == name)).rowcount
