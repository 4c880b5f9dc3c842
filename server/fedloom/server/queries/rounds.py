"""Reads rounds of a run: page by page, and one round with its members."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedloom.server.ledger import require_run
from fedloom.server.ledger.member_summary import measured, shape, summarize
from fedloom.server.ledger.rows import CountedRoundRow, MemberRow, RunRow, values
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.round_views import MemberView, RoundDetail, RoundList, RoundView

_OPEN = ("reporting", "closing")


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


async def round_detail(
    context: ConsoleContext, run: str, number: int, *, after: str = "", limit: int = 200
) -> RoundDetail:
    """A round with its members after the name `after`, by name.

    `run` may be a unique prefix of the id.

    Raises:
        NotFoundError: the run has no such round.
    """
    row = await run_row(context, run)
    found = await context.in_reader(context.ledger.round, row.id, number)
    if found is None:
        raise NotFoundError(f"There is no round {number} in {row.id}.")
    [view] = await _views(context, row, [found])
    page = context.ledger.members
    members = await context.in_reader(page, row.id, number, after=after, limit=limit + 1)
    rows = _overlaid(context, row.id, number, members[:limit])
    shown = [MemberView.model_validate(member_values(member, found.kind)) for member in rows]
    more = shown[-1].client if len(members) > limit else None
    return RoundDetail(**view.model_dump(), run=row.id, members=shown, more=more)


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
