"""Pages of rounds: all of a run, and one with its members."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries.rounds import round_detail, rounds_page, run_row
from fedloom.server.web.render import page
from fedloom.server.web.timeline import LEGEND, timelines

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 50
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


@router.get("/runs/{run}/rounds")
async def rounds(
    request: Request,
    context: Context,
    who: Viewer,
    run: str,
    before: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    """A run's rounds, newest first."""
    row = await run_row(context, run)
    found = await rounds_page(context, row.id, before=before, limit=A_PAGE)
    return page(
        request, context, who, "rounds", page="runs",
        run=row, rounds=found.rounds, more=found.more, before=before,
    )  # fmt: skip


@router.get("/runs/{run}/rounds/{number}")
async def one_round(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    run: str,
    number: Annotated[int, Path(ge=1)],
    after: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """One round, with a timeline of each member."""
    row = await run_row(context, run)
    found = await round_detail(context, row.id, number, after=after)
    driver = context.runs.get(row.id)
    live: dict[str, Any] | None = None if driver is None else driver.status()
    is_open = live is not None and (live.get("round") or {}).get("number") == number
    return page(
        request, context, who, "round", page="runs",
        run=row, r=found, live=live if is_open else None, after=after,
        lines=timelines(found), legend=LEGEND, shapes=SHAPES,
    )  # fmt: skip
