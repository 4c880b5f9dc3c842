"""Masked bodies: accepted once each by a message of their session, at the driver or at a gate.

A body is accepted in the transaction that stores its message, which holds the session's row: it is
in `masked` when the session is frozen, or it is refused.

Invariants: the parts of an accepted body are whole, of its header, and stay so until its session is
over. A body that comes late, and was never accepted, is deleted unread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from fedloom.server.ledger.masking.sessions import BODY, MaskingSessions, digest_of, store_in
from fedloom.server.ledger.replicas.gate_queues import (
    AcceptedHere,
    lock_body,
    lock_client,
    tell_in,
    tellings_of,
)
from fedloom.server.ledger.tables import masking_messages, masking_sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedUpload:
    """A masked body that is durable.

    Attributes:
        at: run, round and number of its session.
        client: that sent it.
        file: name in the spool.
        header: of the update; its SHA-256 is the update's identity.
        parts: of the body in the object store; None where bodies are files.
        seen: columns of the member's record that a gate has, by name.
    """

    at: tuple[str, int, int]
    client: str
    file: str
    header: bytes
    parts: int | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)


class MaskedBodies(MaskingSessions):
    """Methods about masked bodies."""

    def accept_body(self, upload: MaskedUpload, gate: str = "") -> bool:
        """Accept a body; a gate tells the driver in the same transaction.

        Args:
            upload: the body.
            gate: that accepts it; empty for the driver.

        Returns:
            False if it was accepted before.

        Raises:
            Refusal: as `store_session_message`; with parts also REVOKED, QUARANTINED, or BUSY,
                another upload of it has begun.
        """
        check = None if upload.parts is None else partial(_check, upload=upload, parts=upload.parts)
        client, (run, number, _) = upload.client, upload.at
        with self._write() as connection:
            if not store_in(connection, upload.at, BODY, client, upload.header, check=check):
                connection.execute(_again(run, number, client))
                return False
            if gate:
                here = AcceptedHere(
                    run=run, round=number, client=client, counted=number, staleness=0,
                    file=upload.file, devices=None,
                )  # fmt: skip
                tell_in(connection, gate, 0, tellings_of(here, upload.seen))
        return True

    def body_digest(self, run: str, number: int, client: str) -> str | None:
        """The identity of the masked update that is stored of a client; None without one."""
        found = self._values(
            sa.select(masking_messages.c.digest).filter_by(
                run=run, round=number, client=client, phase=BODY
            )
        )
        return next(iter(found), None)

    def body_digests(self, at: tuple[str, int, int]) -> dict[str, str]:
        """The identities of the masked updates of a session, by client."""
        column, key = masking_messages.c, zip(("run", "round", "session"), at, strict=True)
        return self._pairs(
            sa.select(column.client, column.digest).filter_by(phase=BODY, **dict(key))
        )

    def repeat_body(self, run: str, number: int, client: str) -> bool:
        """Write the row of a masked update again, as `repeat_all` does; whether it is there."""
        return self._change(_again(run, number, client)) > 0

    def session_states(self, run: str, number: int) -> dict[int, tuple[str, tuple[str, ...]]]:
        """The state of each session of a round, and the members that shared; by its number."""
        column = masking_sessions.c
        query = sa.select(column.session, column.state, column.shared)
        with self._engine.connect() as connection:
            found = connection.execute(query.filter_by(run=run, round=number))
            return {row.session: (row.state, tuple(row.shared or ())) for row in found}


def _again(run: str, number: int, client: str) -> sa.Update:
    its = masking_messages.update().filter_by(run=run, round=number, client=client, phase=BODY)
    return its.values(stored_at=masking_messages.c.stored_at)


def _check(connection: sa.Connection, *, upload: MaskedUpload, parts: int) -> None:
    lock_client(connection, upload.client)
    lock_body(connection, upload.file, digest_of(upload.header), parts)
