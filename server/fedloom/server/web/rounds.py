"""Pages of rounds: all of a run, and one with its members."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from fedloom.protocol.errors import UsageError
from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.ledger.rows import RunRow
from fedloom.server.queries.masking import live_status, sessions_of
from fedloom.server.queries.round_views import MemberView, RoundView
from fedloom.server.queries.rounds import (
    listed_members,
    listed_rounds,
    round_view,
    run_row,
    session_detail,
)
from fedloom.server.web.lists import (
    Answer,
    ListColumn,
    Listing,
    listing,
    metric_columns,
    metric_names,
    utc,
)
from fedloom.server.web.render import page
from fedloom.server.web.timeline import LEGEND, timelines

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 50
MEMBERS_SHOWN = 200
STATES = ("reporting", "masking", "closing", "sent", "committed", "abandoned", "undone")
PHASES = (
    "offered", "training", "ready", "reported", "declined", "failed", "refused", "late", "lost",
)  # fmt: skip
SENT_PHASES = {
    "ready": "Ready",
    "shares": "Shares",
    "body": "Masked update",
    "agreement": "Signature",
    "reveal": "Reveal",
    "closing": "Gave up",
}
"""Phases of the messages of a masking session, in order, and their titles."""

SHAPES = {
    "-": "checked in",
    "v": "downloaded the task",
    "[": "training started",
    "]": "training completed",
    "+": "upload started",
    "^": "upload accepted",
    "#": "upload rejected",
    "*": "error",
    "!": "interrupted",
}


def _count(name: str, title: str, field: str = "", **more: Any) -> ListColumn:
    """A column of a number of a round's members."""

    def value(row: RoundView) -> Any:
        return None if row.clients is None else getattr(row.clients, field or name)

    return ListColumn(name, title, value, num=True, first=True, **more)


def duration_s(row: RoundView) -> float | None:
    """How long a round took; None for an open one."""
    return None if row.closed_at is None else row.closed_at - row.opened_at


COLUMNS = (
    ListColumn("round", "Round", lambda r: r.number, first=True),
    ListColumn("state", "State", lambda r: "undone" if r.undone_at else r.state),
    _count("selected", "Selected"),
    _count("took", "Took offer", shown=False),
    _count("trained", "Trained", "training", shown=False),
    _count("uploaded", "Sent", shown=False),
    _count("counted", "Counted"),
    _count("declined", "Declined", shown=False),
    _count("failed", "Failed"),
    _count("refused", "Refused"),
    _count("late", "Late"),
    _count("lost", "Lost"),
)
LATER = (
    _count("p50_s", "p50", hint="from offer to accepted update, the median of clients"),
    _count("p95_s", "p95", hint="from offer to accepted update, 95 % of clients"),
    _count("bytes_up", "Up"),
    _count("bytes_down", "Down", shown=False),
    _count("retries", "Retries", shown=False),
    ListColumn("duration_s", "Took", duration_s, num=True, shown=False, first=True),
    ListColumn("model", "Model", lambda r: r.model_out, shown=False),
    ListColumn("ended", "Ended", lambda r: utc(r.closed_at), first=True),
)


@router.get("/runs/{run}/rounds", response_model=None)
async def rounds(request: Request, context: Context, who: Viewer, run: str) -> Answer:
    """A run's rounds that match the filter, newest first unless sorted."""
    row = await run_row(context, run)
    asked = listing(
        request, "state", key="round", descending=True, own="newest first", limit=A_PAGE
    )
    state = known_state(asked.filters["state"], STATES)
    found = await listed_rounds(context, row, asked.cut(), state=state)
    names = metric_names(asked, found, metrics_of)
    asked.fill(found, (*COLUMNS, *metric_columns(names, metrics_of), *LATER))
    if asked.as_csv:
        return await asked.csv(f"rounds-{row.id}")
    return page(
        request, context, who, "rounds", page="runs", run=row, list=asked, states=STATES,
        duration_s=duration_s,
    )  # fmt: skip


def metrics_of(row: RoundView) -> dict[str, Any]:
    """A round's metrics: of the evaluation of its model, and of training where that lacks one."""
    evaluated, trained = row.evaluation or {}, row.training or {}
    return {**(trained.get("values") or {}), **(evaluated.get("values") or {})}


def known_state(value: str, known: tuple[str, ...]) -> str:
    """A filter's value.

    Raises:
        UsageError: it is not one of the known ones.
    """
    if value and value not in known:
        raise UsageError(f"Expected state as one of {', '.join(known)}, got {value[:80]!r}.")
    return value


# ---- one round, and its members ------------------------------------------------------------------


def _member(name: str, title: str, **more: Any) -> ListColumn:
    """A column of a number of a member."""
    return ListColumn(name, title, lambda m: getattr(m, name), num=True, first=True, **more)


def took_s(member: MemberView) -> float | None:
    """From a member's offer to its accepted update."""
    if member.accepted_at is None or member.offered_at is None:
        return None
    return member.accepted_at - member.offered_at


def values_of(member: MemberView) -> dict[str, Any]:
    """A member's metrics: of its training, or of its evaluation."""
    return {**(member.evaluation or {}), **(member.training or {})}


MEMBER_COLUMNS = (
    ListColumn("client", "Client", lambda m: m.client),
    ListColumn("state", "State", lambda m: m.phase),
    ListColumn("took_s", "Timeline", took_s, first=True,
        hint="sorted by the time from offer to accepted update",
    ),
    ListColumn("session", "Session", lambda m: m.shape, shown=False),
    _member("num_examples", "Examples"),
    _member("norm", "Norm"),
)  # fmt: skip
SITE_COLUMNS = (_member("devices", "Devices", hint="in its sum, of its places"),)
MEMBER_LATER = (
    _member("bytes_up", "Up"),
    _member("bytes_down", "Down", shown=False),
    _member("retries", "Retries", shown=False),
    _member("weight", "Weight", shown=False),
    _member("staleness", "Staleness", shown=False),
    ListColumn("code", "Code", lambda m: m.code, shown=False),
    ListColumn("reason", "Reason", lambda m: m.reason, shown=False),
    ListColumn("offered_at", "Offered", lambda m: utc(m.offered_at), shown=False),
    ListColumn("accepted_at", "Accepted", lambda m: utc(m.accepted_at), shown=False),
)


@router.get("/runs/{run}/rounds/{number}", response_model=None)
async def one_round(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    run: str,
    number: Annotated[int, Path(ge=1, le=2**53)],
) -> Answer:
    """One round, with a timeline of each member that matches the filters."""
    row = await run_row(context, run)
    found = await round_view(context, row, number)
    asked = listing(request, "q", "state", key="client", own="by name", limit=MEMBERS_SHOWN)
    await _list_members(context, row, found, asked)
    if asked.as_csv:
        return await asked.csv(f"round-{number}-{row.id}")
    driver = context.runs.get(row.id)
    live = live_status(driver)
    is_open = live is not None and (live.get("round") or {}).get("number") == number
    return page(
        request, context, who, "round", page="runs",
        run=row, r=found, live=live if is_open else None, list=asked, phases=PHASES,
        lines=timelines(found, asked.rows), legend=LEGEND, shapes=SHAPES,
        sessions=await sessions_of(context, row.id, number),
    )  # fmt: skip


@router.get("/runs/{run}/rounds/{number}/sessions/{session}", response_model=None)
async def one_session(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    run: str,
    number: Annotated[int, Path(ge=1, le=2**53)],
    session: Annotated[int, Path(ge=0, le=2**53)],
) -> Answer:
    """One masking session, with when each member sent which message."""
    found = await session_detail(context, run, number, session)
    sessions = await sessions_of(context, found.run, number)
    others = {phase for each in found.members for phase in each.sent} - SENT_PHASES.keys()
    phases = {**SENT_PHASES, **{phase: phase.capitalize() for phase in sorted(others)}}
    return page(
        request, context, who, "session", page="runs",
        s=found, count=len(sessions), phases=phases,
        is_open=found.state not in ("done", "abandoned"),
    )  # fmt: skip


async def _list_members(context: Context, run: RunRow, found: RoundView, asked: Listing) -> None:
    """Fill a list with the members of a round."""
    part, state = asked.filters["q"].lower(), known_state(asked.filters["state"], PHASES)
    members = await listed_members(
        context, run.id, found.number, kind=found.kind,
        wanted=lambda m: part in m.client.lower() and state in ("", m.phase),
    )  # fmt: skip
    its = SITE_COLUMNS if run.spec.get("sites") else ()
    asked.cut_out(members, (*MEMBER_COLUMNS, *its), MEMBER_LATER, values_of)
