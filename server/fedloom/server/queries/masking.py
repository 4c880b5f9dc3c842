"""Reads masking sessions of rounds, and the claim of masked runs."""

from typing import Any

from fedloom.server.engine import SessionState
from fedloom.server.engine.conduct import Conduct
from fedloom.server.insight.masking import SESSION_WORDS, status
from fedloom.server.insight.masking_claim import claim
from fedloom.server.ledger.masking.blames import CAUSES
from fedloom.server.ledger.rows import MaskingSessionRow, RunRow
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.masking_views import BlameView, MaskingClaim, SessionMember, SessionView
from fedloom.server.rounds.run_driver import RunDriver
from fedloom.strategies.masking.sessions import colluders, drop_outs, threshold


async def sessions_of(context: ConsoleContext, run: str, number: int) -> list[SessionView]:
    """The masking sessions of a round of the run with this id; none if it is not masked."""
    rows = await context.in_reader(context.ledger.session_rows, run, number)
    return [session_view(each) for each in rows]


def session_view(row: MaskingSessionRow) -> SessionView:
    """A session without its members."""
    size, state = len(row.members), SessionState(row.state)
    need = threshold(size)
    return SessionView(
        session=row.session,
        state=row.state,
        words=SESSION_WORDS[state],
        reason=row.reason,
        width_class=row.width_class.partition(":")[0],
        size=size,
        threshold=need,
        drop_outs=drop_outs(size),
        colluders=colluders(size),
        shared=_count(row.shared),
        masked=_count(row.masked),
        revealed=_count(row.revealed),
        sent={phase: len(who) for phase, who in row.sent.items()},
        closed=len(row.closed),
        proven_dead=state is SessionState.ABANDONED and len(row.closed) >= need,
        blamed=[BlameView(client=c, cause=why, words=CAUSES[why]) for c, why in row.blamed],
        opened_at=row.opened_at,
        deadline_at=row.deadline_at,
    )


def members_of(row: MaskingSessionRow) -> list[SessionMember]:
    """The members of a session, by name."""
    state, closed, masked = SessionState(row.state), set(row.closed), set(row.masked or ())
    return [
        SessionMember(
            client=client,
            sent={phase: who[client] for phase, who in row.sent.items() if client in who},
            counts=(client in masked and state is SessionState.DONE) if state.is_over else None,
            closed=client in closed,
            blamed=[cause for name, cause in row.blamed if name == client],
        )
        for client in row.members
    ]


def conduct_words(conduct: Conduct, client: str) -> str:
    """Why a run draws a client last, as text; empty if it does not."""
    if (why := conduct.marked.get(client)) is not None:
        return (
            f"drawn last of all: {why.marks} of its {why.sums} sums of masking sessions were "
            "implausible"
        )
    if (count := conduct.dropped.get(client)) is not None:
        return f"drawn last: it dropped out of its last {count} masking sessions"
    return ""


def _count(members: list[str] | None) -> int | None:
    return None if members is None else len(members)


def claim_of(row: RunRow) -> MaskingClaim | None:
    """What the server can read of a run; None if it is not masked."""
    table = row.spec.get("masking")
    if not table:
        return None
    goal = row.goals[0] if row.goals else row.spec["cohort"]["goal"]
    return MaskingClaim.model_validate(claim(table, goal, sites=bool(row.spec.get("sites"))))


def live_status(driver: RunDriver | None) -> dict[str, Any] | None:
    """The live status of a run, with its round's masking sessions; None if it is not active."""
    if driver is None:
        return None
    return status(driver.status(), None if driver.round is None else driver.round.engine)
