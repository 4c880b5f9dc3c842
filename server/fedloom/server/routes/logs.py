"""The route of the latest log lines."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import FAULTS, Context

router = APIRouter(tags=["logs"], responses=FAULTS)


class LogLine(BaseModel):
    """A line of the server's log."""

    id: Annotated[int, Field(description="increases; restarts with the process")]
    at: float
    level: str
    logger: str
    message: str
    client: Annotated[str, Field(description="that the line concerns; empty for none")]
    run: Annotated[str, Field(description="that the line concerns; empty for none")]
    round: Annotated[int | None, Field(description="that the line concerns; null for none")]


class LogLines(BaseModel):
    """Lines, newest first."""

    lines: list[LogLine]
    more: Annotated[int | None, Field(description="`before` of the next page; null at the end")]


@router.get("/logs")
async def list_lines(
    context: Context,
    _: Viewer,
    *,
    level: Annotated[str, Query(pattern="^(debug|info|warning|error|)$")] = "",
    q: Annotated[str, Query(max_length=200, description="in the message or logger's name")] = "",
    client: Annotated[str, Query(max_length=200, description="name of a client")] = "",
    run: Annotated[str, Query(max_length=200, description="id of a run or its start")] = "",
    since: Annotated[float, Query(ge=0, le=1e12, description="seconds since the epoch")] = 0.0,
    before: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> LogLines:
    """The latest lines of this process's log that match the filters, newest first."""
    found = context.log_ring.lines(
        level=level, text=q, client=client, run=run, since=since, before=before, limit=limit
    )
    more = found[-1]["id"] if len(found) == limit else None
    return LogLines(lines=[LogLine(**line) for line in found], more=more)
