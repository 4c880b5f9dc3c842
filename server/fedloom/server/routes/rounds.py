"""Routes of rounds: page by page, one with its members, and its masking sessions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.queries import rounds as queries
from fedloom.server.queries.masking_views import SessionDetail, SessionList
from fedloom.server.queries.round_views import RoundDetail, RoundList
from fedloom.server.queries.views import MAX_NUMBER

router = APIRouter(prefix="/runs/{run}/rounds", tags=["rounds"], responses=FAULTS)


@router.get("")
async def list_rounds(
    context: Context,
    _: Viewer,
    run: str,
    before: Annotated[
        int, Query(ge=0, le=MAX_NUMBER, description="last number of the page before")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RoundList:
    """A run's rounds, newest first, with counts of their members."""
    return await queries.rounds_page(context, run, before=before, limit=limit)


@router.get("/{number}")
async def round_detail(
    context: Context,
    _: Viewer,
    run: str,
    number: Annotated[int, Path(ge=1, le=MAX_NUMBER)],
    after: Annotated[str, Query(description="last client of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> RoundDetail:
    """A round with its members, by name."""
    return await queries.round_detail(context, run, number, after=after, limit=limit)


@router.get("/{number}/sessions")
async def list_sessions(
    context: Context, _: Viewer, run: str, number: Annotated[int, Path(ge=1, le=MAX_NUMBER)]
) -> SessionList:
    """The masking sessions of a round, with how many members sent what."""
    return await queries.list_sessions(context, run, number)


@router.get("/{number}/sessions/{session}")
async def session_detail(
    context: Context,
    _: Viewer,
    run: str,
    number: Annotated[int, Path(ge=1, le=MAX_NUMBER)],
    session: Annotated[int, Path(ge=0, le=MAX_NUMBER)],
) -> SessionDetail:
    """A masking session with its members: who was asked and who sent what, never what was sent."""
    return await queries.session_detail(context, run, number, session)
