"""The first page: health, alerts, active runs."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries import overview as queries
from fedloom.server.queries.overview import ROUNDS_SHOWN
from fedloom.server.web.render import page
from fedloom.server.web.runs import tail

router = APIRouter(include_in_schema=False, route_class=LivePart)


@router.get("/")
async def overview(request: Request, context: Context, who: Viewer) -> HTMLResponse:
    """Health, runs, the open rounds, curves and alerts."""
    found = await queries.overview(context)
    tails = {run.id: await tail(context, run.id) for run in found.runs}
    return page(
        request, context, who, "overview", page="overview", found=found, tails=tails,
        rounds_shown=ROUNDS_SHOWN,
    )  # fmt: skip
