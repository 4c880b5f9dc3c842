"""Members to blame for masking sessions, and the rows of sessions that operators see.

Invariant: nothing here reads the content of a message.
"""

import time
from collections.abc import Mapping

import sqlalchemy as sa

from fedloom.protocol.errors import IntegrityError
from fedloom.server.ledger.masking.sessions import MaskingSessions
from fedloom.server.ledger.rows import MaskingSessionRow
from fedloom.server.ledger.tables import masking_blames, masking_messages, masking_sessions

FALSE_SHARES, FALSE_REVEAL, IMPLAUSIBLE = "false_shares", "false_reveal", "implausible"
CAUSES: Mapping[str, str] = {
    FALSE_SHARES: "dealt shares of another secret",
    FALSE_REVEAL: "revealed shares that were not dealt",
    IMPLAUSIBLE: "was in a session with an implausible sum, which convicts nobody",
}
"""Cause of a blame → what the member did. Shares convict; an implausible sum marks all members."""


class MaskingBlames(MaskingSessions):
    """Methods about blame, and about sessions as operators see them."""

    def blame(self, at: tuple[str, int, int], client: str, cause: str) -> None:
        """Record that a member is to blame for a session. A repeat changes nothing.

        Args:
            at: run, round and number of the session.
            client: a member.
            cause: of `CAUSES`.

        Raises:
            IntegrityError: the cause is not known, or the client is no member.
        """
        run, number, session = at
        key = {"run": run, "round": number, "session": session}
        if cause not in CAUSES:
            raise IntegrityError(f"Expected a cause of {', '.join(CAUSES)}, got {cause!r}.")
        with self._write() as connection:
            members = sa.select(masking_sessions.c.members).filter_by(**key).with_for_update()
            if client not in (connection.execute(members).scalar() or ()):
                raise IntegrityError(f"Expected a member of session {at}, got {client}.")
            known = sa.select(masking_blames.c.at).filter_by(**key, client=client, cause=cause)
            if connection.execute(known).first() is None:
                row = {**key, "client": client, "cause": cause, "at": time.time()}
                connection.execute(masking_blames.insert().values(row))

    def session_rows(self, run: str, number: int) -> list[MaskingSessionRow]:
        """The masking sessions of a round by number; none if it is not masked."""
        at = {"run": run, "round": number}
        with self._engine.connect() as connection:
            table = masking_sessions.c
            its = connection.execute(
                sa.select(*(c for c in table if c.name not in at))
                .filter_by(**at)
                .order_by(table.session)
            )
            rows = [dict(row) for row in its.mappings()]
            if not rows:
                return []
            sent: dict[int, dict[str, dict[str, float]]] = {row["session"]: {} for row in rows}
            message = masking_messages.c
            columns = (message.session, message.phase, message.client, message.stored_at)
            query = sa.select(*columns).filter_by(**at)
            for session, phase, client, stored_at in connection.execute(query):
                sent[session].setdefault(phase, {})[client] = stored_at
            blamed: dict[int, list[tuple[str, str]]] = {row["session"]: [] for row in rows}
            who = masking_blames.c
            blames = sa.select(who.session, who.client, who.cause).filter_by(**at)
            for session, client, cause in connection.execute(
                blames.order_by(who.session, who.client, who.cause)
            ):
                blamed[session].append((client, cause))
        return [
            MaskingSessionRow(
                **row,
                sent=sent[row["session"]],
                closed=sorted(found.closed),
                blamed=blamed[row["session"]],
            )
            for row, found in zip(rows, self.sessions(run, number), strict=True)
        ]
