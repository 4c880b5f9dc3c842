"""The page of the log, which follows new lines."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.metrics.log_buffer import LEVELS
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False)

A_PAGE = 300

Text = Annotated[str, Query(max_length=200)]


@router.get("/logs")
async def logs(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    level: str = "info",
    q: Text = "",
    client: Text = "",
    run: Text = "",
) -> HTMLResponse:
    """The latest lines that match the filters."""
    level = level if level in LEVELS else ""
    asked = {"q": q, "client": client.strip(), "run": run.strip()}
    lines = context.log_ring.lines(
        level=level, text=q, client=asked["client"], run=asked["run"], limit=A_PAGE
    )
    return page(
        request, context, who, "logs", page="logs",
        lines=lines, level=level, asked=asked, levels=LEVELS,
    )  # fmt: skip
