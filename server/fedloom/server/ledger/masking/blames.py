"""Members to blame for masking sessions, and the rows of sessions that operators see.

Invariant: nothing here reads the content of a message.
"""

import time
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from fedloom.protocol.errors import IntegrityError
from fedloom.server.engine import SessionState
from fedloom.server.engine.conduct import PastSession
from fedloom.server.engine.masking import THRESHOLD
from fedloom.server.ledger.masking.sessions import BODY, SHARES, MaskingSessions
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

    def past_sessions(self, run: str, first: int, before: int) -> list[PastSession]:
        """The sessions that are over of the rounds `first` to `before` - 1, in order."""
        column, blame, message = masking_sessions.c, masking_blames.c, masking_messages.c
        over = [state.value for state in SessionState if state.is_over]
        query = sa.select(masking_sessions).filter_by(run=run).where(column.state.in_(over))
        query = query.where(column.round >= first, column.round < before)
        marks = sa.select(blame.round, blame.session).filter_by(run=run, cause=IMPLAUSIBLE)
        senders = sa.select(message.client).filter_by(run=run)
        with self._engine.connect() as connection:
            rows = list(connection.execute(query.order_by(column.round, column.session)).mappings())
            marked = {tuple(at) for at in connection.execute(marks.distinct())}

            def sent(row: sa.RowMapping, phase: str) -> set[str]:
                its = senders.filter_by(round=row["round"], session=row["session"], phase=phase)
                return set(connection.execute(its).scalars())

            return [
                PastSession(
                    round=row["round"],
                    masked=frozenset(row["masked"] or ()),
                    dropped=_dropped(row, sent),
                    summed=spoiled or row["state"] == SessionState.DONE.value,
                    implausible=spoiled,
                )
                for row in rows
                for spoiled in ((row["round"], row["session"]) in marked,)
            ]


def _dropped(row: sa.RowMapping, sent: Callable[[sa.RowMapping, str], set[str]]) -> frozenset[str]:
    """The members without whose shares or body a session went on, or was given up.

    Nobody has dropped out of a phase that ended for another reason, such as an operator's command.
    """
    members, vain = frozenset(row["members"]), row["reason"].startswith(THRESHOLD)
    if row["masked"] is not None:
        return members.difference(row["masked"])
    if row["shared"] is None:
        return members - sent(row, SHARES) if vain else frozenset()
    return members - (sent(row, BODY) if vain else frozenset(row["shared"]))
