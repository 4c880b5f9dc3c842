"""Routes about rounds: page by page, and one of them with every member's part in it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from fedloom.server.access.scopes import Viewer
from fedloom.server.ledger import Row, require_run
from fedloom.server.queries.parts import FAULTS, Here, NotFoundError, Parts
from fedloom.server.queries.round_views import MemberView, RoundDetail, RoundList, RoundView
from fedloom.server.queries.views import MAX_NUMBER
from fedloom.server.rounds.member_records import measured, shape, summarize

router = APIRouter(prefix="/runs/{run}/rounds", tags=["rounds"], responses=FAULTS)

_OPEN = ("reporting", "closing")


@router.get("")
async def list_rounds(
    here: Here,
    _: Viewer,
    run: str,
    before: Annotated[
        int, Query(ge=0, le=MAX_NUMBER, description="number of the last one of the page before")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RoundList:
    """A run's rounds, newest first, each with what its members did in numbers."""
    row = await run_row(here, run)
    rounds = await rounds_of(here, row, before=before, limit=limit)
    more = rounds[0].number if rounds and rounds[0].number > 1 else None
    return RoundList(rounds=rounds[::-1], more=more)


@router.get("/{number}")
async def round_detail(
    here: Here,
    _: Viewer,
    run: str,
    number: Annotated[int, Path(ge=1, le=MAX_NUMBER)],
    after: Annotated[str, Query(description="the last client of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> RoundDetail:
    """A round, and what each of its members did in it, by name."""
    row = await run_row(here, run)
    world = here.world
    found = await world.in_reader(world.ledger.round, row["id"], number)
    if found is None:
        raise NotFoundError(f"Expected a round of {row['id']}, got {number}.")
    [view] = await _views(here, row, [found])
    page = world.ledger.members
    members = await world.in_reader(page, row["id"], number, after=after, limit=limit + 1)
    rows = _overlaid(here, row["id"], number, members[:limit])
    shown = [_member(member, found["kind"]) for member in rows]
    more = shown[-1].client if len(members) > limit else None
    return RoundDetail(**view.model_dump(), run=row["id"], members=shown, more=more)


async def run_row(here: Parts, run: str) -> Row:
    """The row of the run that is called this."""
    run = await here.run_id(run)
    return require_run(await here.world.in_reader(here.world.ledger.run, run), run)


async def rounds_of(here: Parts, run: Row, *, before: int = 0, limit: int = 50) -> list[RoundView]:
    """The last rounds of a run below a number, or of all, in order."""
    page = here.world.ledger.page_of_rounds
    found = await here.world.in_reader(page, run["id"], before=before, limit=limit)
    return await _views(here, run, found)


async def _views(here: Parts, run: Row, rounds: Iterable[Row]) -> list[RoundView]:
    """Rounds with their summaries: stored, or made of what is known."""
    rounds = list(rounds)
    world, name = here.world, run["id"]
    live = {r["number"] for r in rounds if r["state"] in _OPEN}
    lacking = [r["number"] for r in rounds if r["summary"] is None and r["number"] not in live]
    over = run["spec"].get("cohort", {}).get("mode") != "buffered"
    made = await world.in_reader(world.ledger.summaries, name, lacking, over=over)
    for number in live:
        members = await world.in_reader(world.ledger.members, name, number)
        made[number] = summarize(_overlaid(here, name, number, members), over=False)
    views = []
    for row in rounds:
        values = {**row, "clients": row["summary"] or made[row["number"]]}
        for what in ("training", "evaluation"):
            values[what] = row[what] or None  # an empty measurement is none
        views.append(RoundView.model_validate(values))
    return views


def _overlaid(
    here: Parts, run: str, number: int, members: Iterable[Row]
) -> list[Mapping[str, Any]]:
    """Rows of members, with what is only in memory yet."""
    records = here.world.records.of((run, number))
    driver = here.runs.get(run)
    shell = None if driver is None else driver.round
    rows: list[Mapping[str, Any]] = []
    for member in members:
        client, row = member["client"], dict(member)
        if shell is not None and shell.key_of(client) == (run, number):
            row["phase"] = shell.engine.cohort.phases.get(client, row["phase"])
        if client in records:
            row |= records[client].stored()
        rows.append(row)
    return rows


def _member(row: Mapping[str, Any], kind: str) -> MemberView:
    values = {**row, "phase": str(row["phase"]), "shape": shape(row), **measured(row, kind)}
    return MemberView.model_validate(values)
