"""Masking sessions: their states, the sets of their members, and what these sent.

A message is addressed by its session, phase and client: a repeat is acknowledged, another one for
the same address is refused. Bodies lie in the spool; here is the file's name.

Invariants: a session's row is written before anything of it is sent. A set is written once, in the
transaction that leaves the state which gathers it. Every body that is acknowledged while a session
is MASKING is in `masked`, and none is acknowledged afterwards. The updates of a session's survivors
count from the transaction that ends it. Of a session that is over the digests of messages stay;
everything else is deleted. Of one that was abandoned, the adverts and the signatures of those that
gave up stay until its round is over.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.server.engine import SessionSnapshot, SessionState
from fedloom.server.ledger.rounds import Rounds
from fedloom.server.ledger.store import EVALUATE, after_success
from fedloom.server.ledger.tables import (
    clients,
    cohorts,
    masking_messages,
    masking_sessions,
    rounds,
    updates,
)
from fedloom.server.ledger.updates import MASKING, REPORTING, lock_clients

READY, SHARES, COMPLAINT, BODY, AGREEMENT, REVEAL, CLOSING = (
    "ready", "shares", "complaint", "body", "agreement", "reveal", "closing",
)  # fmt: skip
"""The phases of messages."""

_ADMITTED: Mapping[str, tuple[SessionState, ...]] = {
    SHARES: (SessionState.SHARING,),
    COMPLAINT: (SessionState.MASKING, SessionState.FROZEN, SessionState.AGREEING),
    BODY: (SessionState.MASKING,),
    AGREEMENT: (SessionState.AGREEING, SessionState.REVEALING),
    REVEAL: (SessionState.REVEALING,),
    CLOSING: (SessionState.ABANDONED,),
}
"""The states in which a message of a phase is stored."""

_FROM: Mapping[str, str] = {
    SHARES: "members", COMPLAINT: "shared", BODY: "shared", AGREEMENT: "masked", REVEAL: "masked",
    CLOSING: "members",
}  # fmt: skip
"""The set of members that may send a message of a phase."""

_GATHERS: Mapping[SessionState, str] = {
    SessionState.SHARING: SHARES,
    SessionState.MASKING: BODY,
    SessionState.AGREEING: AGREEMENT,
    SessionState.REVEALING: REVEAL,
}


class MaskingSessions(Rounds):
    """Methods about masking sessions; `at` is a run, a round and a session's number."""

    def open_sessions(
        self,
        run: str,
        number: int,
        rosters: Sequence[tuple[str, Sequence[str]]],
        *,
        deadline_at: float,
        adverts: Mapping[str, bytes],
    ) -> None:
        """Begin the sessions of a round that is reporting. A repeat changes nothing.

        Args:
            run: id.
            number: of the round.
            rosters: width class and members of session 0, 1, ….
            deadline_at: when members forget their secrets.
            adverts: of each member, as it signed it.

        Raises:
            IntegrityError: the round has other sessions, or is not reporting.
        """
        now = self.wall()
        with self._write() as connection:
            moved = connection.execute(
                rounds.update()
                .filter_by(run=run, number=number, state=REPORTING)
                .values(state=MASKING)
            )
            if moved.rowcount != 1:
                _check_opened(connection, run, number, rosters)
                return
            for session, (width, members) in enumerate(rosters):
                at = {"run": run, "round": number, "session": session}
                connection.execute(
                    masking_sessions.insert().values(
                        **at, state=SessionState.SHARING.value, width_class=width,
                        members=sorted(members), opened_at=now, deadline_at=deadline_at,
                    )
                )  # fmt: skip
                sent = [_message(at, READY, member, adverts[member], now) for member in members]
                connection.execute(masking_messages.insert(), sent)

    def store_session_message(
        self, at: tuple[str, int, int], phase: str, client: str, content: bytes
    ) -> bool:
        """Store a message of a member; False if it was stored before.

        Raises:
            Refusal: CONFLICTING_UPDATE, if another one was; NOT_IN_COHORT or ROUND_CLOSED, if the
                session does not gather it from this client.
        """
        with self._write() as connection:
            return store_in(connection, at, phase, client, content)

    def move_session(
        self,
        at: tuple[str, int, int],
        state: SessionState,
        *,
        shared: Collection[str] = (),
        revealed: Collection[str] = (),
        reason: str = "",
    ) -> None:
        """Store the next state of a session, with the set that it fixes. A repeat changes nothing.

        Not FROZEN and DONE: see `freeze_session` and `finish_session`.

        Raises:
            IntegrityError: the session is past that state, or the set was fixed otherwise.
        """
        with self._write() as connection:
            row = _locked(connection, at)
            fixed = {"shared": sorted(shared), "revealed": sorted(revealed)}
            new: dict[str, Any] = {name: found for name, found in fixed.items() if found}
            if row["state"] != state.value:
                _check_order(row, state)
                new |= {"state": state.value, "reason": reason}
            elif any(row[name] != found for name, found in new.items()):
                raise IntegrityError(f"Session {at[2]} is {state} with other members.")
            else:
                return
            its = masking_sessions.update().filter_by(**_key(at))
            connection.execute(its.values(**new))
            if state is SessionState.ABANDONED:
                _forget(connection, at, but=(READY, CLOSING))
                its = cohorts.update().filter_by(run=at[0], round=at[1], phase="reported")
                its = its.where(cohorts.c.client.in_(row["members"]))
                connection.execute(its.values(phase="lost", reason=reason[:500]))

    def freeze_session(self, at: tuple[str, int, int]) -> list[str]:
        """Store no more bodies; returns the members whose bodies are stored, by name.

        Raises:
            IntegrityError: the session has gathered no bodies.
        """
        with self._write() as connection:
            row = _locked(connection, at)
            if row["state"] != SessionState.MASKING.value:
                if row["masked"] is None:
                    raise IntegrityError(f"Session {at[2]} is {row['state']}: it has no bodies.")
                return list(row["masked"])
            sent = sa.select(masking_messages.c.client).filter_by(**_key(at), phase=BODY)
            masked = sorted(connection.execute(sent).scalars())
            its = masking_sessions.update().filter_by(**_key(at))
            connection.execute(its.values(state=SessionState.FROZEN.value, masked=masked))
        return masked

    def finish_session(
        self, at: tuple[str, int, int], files: Mapping[str, str], size_bytes: int
    ) -> Collection[str]:
        """Store that the sum of a session is on disk: its members' updates count. Once.

        Args:
            at: the session.
            files: for each survivor the name of its body; empty where it has no tensors.
            size_bytes: of a body.

        Returns:
            The members whose recent failures this halves: those that nothing is held against.

        Raises:
            IntegrityError: the session does not wait for its sum.
        """
        with self._write() as connection:
            row = _locked(connection, at)
            if row["state"] == SessionState.DONE.value:
                return ()
            if row["state"] != SessionState.UNMASKING.value or sorted(files) != row["masked"]:
                raise IntegrityError(f"Session {at[2]} is {row['state']}: it has no sum yet.")
            column = masking_messages.c
            sent = sa.select(column.client, column.digest, column.stored_at)
            sent = sent.filter_by(**_key(at), phase=BODY).where(column.client.in_(files))
            counted = [
                {
                    "run": at[0], "round": at[1], "client": client, "identity": digest,
                    "file": files[client], "size_bytes": size_bytes, "weight": 0.0, "norm": 0.0,
                    "training": {}, "evaluation": {}, "accepted_at": stored_at,
                    "counts_in": at[1], "staleness": 0,
                }
                for client, digest, stored_at in connection.execute(sent)
            ]  # fmt: skip
            connection.execute(updates.insert(), counted)
            its = sa.and_(cohorts.c.run == at[0], cohorts.c.round == at[1])
            its = sa.and_(its, cohorts.c.client.in_(files))
            lock_clients(connection, files)  # before their tasks, as by who sets a phase
            failed = sa.select(cohorts.c.client).where(its, cohorts.c.phase != "reported")
            at_fault = set(connection.execute(failed).scalars())
            # The reason stays: the update of one that revealed false shares counts, too.
            connection.execute(cohorts.update().where(its).values(phase="reported"))
            kind = connection.execute(
                sa.select(rounds.c.kind).filter_by(run=at[0], number=at[1])
            ).scalar()
            well = files.keys() - at_fault
            its = clients.c.name.in_(well)
            connection.execute(after_success(its, evaluating=kind == EVALUATE))
            done = masking_sessions.update().filter_by(**_key(at))
            connection.execute(done.values(state=SessionState.DONE.value))
            _forget(connection, at)
        return well

    def forget_sessions(self, run: str, number: int) -> None:
        """Delete what is left of the messages of a round that is over; the digests stay."""
        its = masking_messages.update().filter_by(run=run, round=number)
        self._change(its.where(masking_messages.c.content.is_not(None)).values(content=None))

    def session_messages(self, at: tuple[str, int, int], phase: str) -> dict[str, bytes]:
        """The messages of a phase by client; those that were deleted are left out."""
        column = masking_messages.c
        query = sa.select(column.client, column.content).filter_by(**_key(at), phase=phase)
        return self._pairs(query.where(column.content.is_not(None)))

    def sessions(self, run: str, number: int) -> list[SessionSnapshot]:
        """The sessions of a round by number, as the engine continues them."""
        now = self.wall()
        with self._engine.connect() as connection:
            found = connection.execute(
                sa.select(masking_sessions)
                .filter_by(run=run, round=number)
                .order_by(masking_sessions.c.session)
            )
            rows = list(found.mappings())
            sent: dict[tuple[int, str], set[str]] = {}
            column = masking_messages.c
            query = sa.select(column.session, column.phase, column.client)
            for session, phase, client in connection.execute(
                query.filter_by(run=run, round=number)
            ):
                sent.setdefault((session, phase), set()).add(client)
            ended = sa.select(cohorts.c.client).filter_by(run=run, round=number)
            ended = ended.where(cohorts.c.phase.in_(["failed", "refused", "declined"]))
            failed = frozenset(connection.execute(ended).scalars())
        return [_snapshot(row, sent, failed, now) for row in rows]


def store_in(
    connection: sa.Connection, at: tuple[str, int, int], phase: str, client: str, content: bytes,
    *, check: Callable[[sa.Connection], None] | None = None,
) -> bool:  # fmt: skip
    """Store a message within a transaction, as `store_session_message` does.

    Args:
        connection: of the transaction; it holds the session's row until its end.
        at: run, round and number of the session.
        phase: of the message.
        client: its sender.
        content: of the message.
        check: called for a new message, before anything is written; raises a `Refusal`.
    """
    key, row = _key(at), _locked(connection, at)
    found = connection.execute(
        sa.select(masking_messages.c.digest).filter_by(**key, phase=phase, client=client)
    ).scalar()
    if found is not None:
        if found != digest_of(content):
            raise Refusal(
                Code.CONFLICTING_UPDATE,
                f"Expected a repeat of the {phase} that were stored, got others.",
            )
        return False
    if client not in row["members"]:
        raise Refusal(Code.NOT_IN_COHORT, f"Expected a member of session {at[2]}.")
    gathers = SessionState(row["state"]) in _ADMITTED[phase]
    if not gathers or client not in (row[_FROM[phase]] or ()):
        raise Refusal(
            Code.ROUND_CLOSED, f"Session {at[2]} is {row['state']}: {phase} come too late."
        )
    if check is not None:
        check(connection)
    message = _message(key, phase, client, content, time.time())
    connection.execute(masking_messages.insert().values(message))
    if phase == BODY:
        connection.execute(
            cohorts.update()
            .filter_by(run=at[0], round=at[1], client=client)
            .values(phase="reported", reason="")
        )
    return True


def _key(at: tuple[str, int, int]) -> dict[str, Any]:
    return dict(zip(("run", "round", "session"), at, strict=True))


def digest_of(content: bytes) -> str:
    """The digest by which the content of a message is known."""
    return hashlib.sha256(content).hexdigest()


def _message(
    key: Mapping[str, Any], phase: str, client: str, content: bytes, now: float
) -> dict[str, Any]:
    return {
        **key, "phase": phase, "client": client, "content": content, "digest": digest_of(content),
        "stored_at": now,
    }  # fmt: skip


def _locked(connection: sa.Connection, at: tuple[str, int, int]) -> sa.RowMapping:
    """The row of a session, which no other transaction changes before this one ends."""
    query = sa.select(masking_sessions).filter_by(**_key(at)).with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:
        raise Refusal(Code.NOT_IN_COHORT, f"Round {at[1]} of {at[0]} has no session {at[2]}.")
    return row


def _check_order(row: sa.RowMapping, state: SessionState) -> None:
    """Check that a session moves forward."""
    order, was = list(SessionState), SessionState(row["state"])
    if was.is_over or order.index(was) >= order.index(state):
        raise IntegrityError(f"Session {row['session']} is {was}: it cannot be {state} now.")


def _check_opened(
    connection: sa.Connection, run: str, number: int, rosters: Iterable[tuple[str, Sequence[str]]]
) -> None:
    found = connection.execute(
        sa.select(masking_sessions.c.width_class, masking_sessions.c.members)
        .filter_by(run=run, round=number)
        .order_by(masking_sessions.c.session)
    )
    if [(w, list(m)) for w, m in found] != [(w, sorted(m)) for w, m in rosters]:
        raise IntegrityError(
            f"Expected round {number} of {run} reporting, or with these sessions; got others."
        )


def _forget(connection: sa.Connection, at: tuple[str, int, int], but: Collection[str] = ()) -> None:
    """Delete what members sent to a session that is over; the digests stay."""
    its = masking_messages.update().filter_by(**_key(at))
    connection.execute(its.where(masking_messages.c.phase.not_in(but)).values(content=None))


def _snapshot(
    row: sa.RowMapping, sent: Mapping[tuple[int, str], set[str]], failed: frozenset[str], now: float
) -> SessionSnapshot:
    number, state = row["session"], SessionState(row["state"])
    heard = sent.get((number, _GATHERS.get(state, "")), set())
    masked = row["masked"] or ()
    signed = sent.get((number, AGREEMENT), set()) & set(masked)
    return SessionSnapshot(
        state=state,
        members=row["members"],
        width_class=row["width_class"],
        left_s=max(0.0, row["deadline_at"] - now),
        shared=row["shared"] or (),
        masked=masked,
        signed=() if state is SessionState.AGREEING else signed,
        heard=heard,
        revealed=row["revealed"] or (),
        closed=sent.get((number, CLOSING), set()) - signed,
        failed=failed,
        reason=row["reason"],
    )
