"""The page of the log: its last lines, and those that come."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fedloom.server.log_ring import LEVELS
from fedloom.server.routes.parts import Here
from fedloom.server.routes.scopes import Viewer
from fedloom.server.routes.shared import LivePart
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 300


@router.get("/logs")
async def logs(
    request: Request, here: Here, who: Viewer, level: str = "info", q: str = ""
) -> HTMLResponse:
    """The last lines that are like this; the page adds those that come."""
    level = level if level in LEVELS else ""
    lines = here.world.log_ring.lines(level=level, text=q[:200], limit=A_PAGE)
    return page(
        request, here, who, "logs", page="logs", lines=lines, level=level, q=q[:200], levels=LEVELS
    )
