"""Reads rounds of a run: page by page, and one round with its members."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedloom.server.ledger import require_run
from fedloom.server.ledger.lists.order import Cut
from fedloom.server.ledger.member_summary import measured, shape, summarize
from fedloom.server.ledger.rows import CountedRoundRow, MemberRow, RunRow, values
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.masking import members_of, session_view, sessions_of
from fedloom.server.queries.masking_views import SessionDetail, SessionList
from fedloom.server.queries.round_views import MemberView, RoundDetail, RoundList, RoundView

_OPEN = ("reporting", "masking", "closing")


async def rounds_page(
    context: ConsoleContext, run: str, *, before: int = 0, limit: int = 50
) -> RoundList:
    """Rounds of a run, newest first; with `before`, those of lower numbers.

    `run` may be a unique prefix of the id.
    """
    row = await run_row(context, run)
    rounds = await rounds_of(context, row, before=before, limit=limit)
    more = rounds[0].number if rounds and rounds[0].number > 1 else None
    return RoundList(rounds=rounds[::-1], more=more)


async def listed_rounds(
    context: ConsoleContext, run: RunRow, page: Cut, *, state: str = ""
) -> list[RoundView]:
    """A page of a run's rounds, newest first unless sorted.

    Args:
        context: of the server.
        run: whose rounds.
        page: to cut.
        state: of the rounds, or `undone`; empty for any.
    """
    found = await context.in_reader(context.ledger.listed_rounds, run.id, page, state=state)
    return await _views(context, run, found)


async def listed_members(
    context: ConsoleContext,
    run: str,
    number: int,
    *,
    kind: str,
    wanted: Callable[[MemberView], bool],
) -> list[MemberView]:
    """The members of a round that are wanted, by name.

    What they do in an open round is not in the ledger, so all members are read here:
    200 take 5 ms, 10,000 take 0.3 s.

    Args:
        context: of the server.
        run: id.
        number: of the round.
        kind: of the round.
        wanted: whether a member is listed.
    """
    rows = await context.in_reader(context.ledger.members, run, number)
    overlaid = _overlaid(context, run, number, rows)
    members = [MemberView.model_validate(member_values(row, kind)) for row in overlaid]
    return [member for member in members if wanted(member)]


async def round_view(context: ConsoleContext, run: RunRow, number: int) -> RoundView:
    """A round without its members.

    Raises:
        NotFoundError: the run has no such round.
    """
    found = await context.in_reader(context.ledger.round, run.id, number)
    if found is None:
        raise NotFoundError(
            f"There is no round {number} in {run.id}: see `fedloom round list {run.id}`."
        )
    [view] = await _views(context, run, [found])
    return view


async def round_detail(
    context: ConsoleContext, run: str, number: int, *, after: str = "", limit: int = 200
) -> RoundDetail:
    """A round with its members after the name `after`, by name.

    `run` may be a unique prefix of the id.

    Raises:
        NotFoundError: the run has no such round.
    """
    row = await run_row(context, run)
    view = await round_view(context, row, number)
    page = context.ledger.members
    members = await context.in_reader(page, row.id, number, after=after, limit=limit + 1)
    rows = _overlaid(context, row.id, number, members[:limit])
    shown = [MemberView.model_validate(member_values(member, view.kind)) for member in rows]
    more = shown[-1].client if len(members) > limit else None
    sessions = await sessions_of(context, row.id, number)
    return RoundDetail(**view.model_dump(), run=row.id, members=shown, more=more, sessions=sessions)


async def list_sessions(context: ConsoleContext, run: str, number: int) -> SessionList:
    """The masking sessions of a round. `run` may be a unique prefix of the id.

    Raises:
        NotFoundError: the run has no such round.
    """
    row = await run_row(context, run)
    await round_view(context, row, number)
    return SessionList(sessions=await sessions_of(context, row.id, number))


async def session_detail(
    context: ConsoleContext, run: str, number: int, session: int
) -> SessionDetail:
    """A masking session with its members. `run` may be a unique prefix of the id.

    Raises:
        NotFoundError: the run has no such round, or the round no such session.
    """
    row = await run_row(context, run)
    await round_view(context, row, number)
    rows = await context.in_reader(context.ledger.session_rows, row.id, number)
    for found in rows:
        if found.session == session:
            shown = session_view(found).model_dump()
            return SessionDetail(**shown, run=row.id, round=number, members=members_of(found))
    has = f"sessions 0 to {len(rows) - 1}" if rows else "no masking sessions"
    raise NotFoundError(f"There is no session {session}: round {number} of {row.id} has {has}.")


async def run_row(context: ConsoleContext, run: str) -> RunRow:
    """The run that `run` names."""
    run = await context.run_id(run)
    return require_run(await context.in_reader(context.ledger.run, run), run)


async def rounds_of(
    context: ConsoleContext, run: RunRow, *, before: int = 0, limit: int = 50
) -> list[RoundView]:
    """The latest rounds of a run, below `before` if not 0, in order."""
    page = context.ledger.page_of_rounds
    found = await context.in_reader(page, run.id, before=before, limit=limit)
    return await _views(context, run, found)


async def _views(
    context: ConsoleContext, run: RunRow, rounds: Sequence[CountedRoundRow]
) -> list[RoundView]:
    """Rounds with their summaries, stored or computed."""
    name = run.id
    live = {r.number for r in rounds if r.state in _OPEN}
    lacking = [r.number for r in rounds if r.summary is None and r.number not in live]
    over = run.spec.get("cohort", {}).get("mode") != "buffered"
    made = await context.in_reader(context.ledger.summaries, name, lacking, over=over)
    for number in live:
        members = await context.in_reader(context.ledger.members, name, number)
        made[number] = summarize(_overlaid(context, name, number, members), over=False)
    views = []
    for row in rounds:
        shown = {**values(row), "clients": row.summary or made[row.number]}
        for what in ("training", "evaluation"):
            shown[what] = shown[what] or None  # empty metrics are null
        views.append(RoundView.model_validate(shown))
    return views


def _overlaid(
    context: ConsoleContext, run: str, number: int, members: Iterable[MemberRow]
) -> list[MemberRow]:
    """Members with data that is not stored yet."""
    records = context.records.of((run, number))
    driver = context.runs.get(run)
    open_round = None if driver is None else driver.round
    rows = []
    for member in members:
        client = member.client
        changes: dict[str, Any] = {}
        if open_round is not None and open_round.key_of(client) == (run, number):
            changes["phase"] = str(open_round.engine.cohort.phases.get(client, member.phase))
        if client in records:
            changes |= records[client].stored()
        rows.append(replace(member, **changes))
    return rows


def member_values(row: MemberRow, kind: str) -> dict[str, Any]:
    """Fields of a `MemberView` from a row of a round of this kind."""
    return {**values(row), "shape": shape(row), **measured(row, kind)}
