"""The first page: is it healthy, and what needs somebody."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries.parts import Here
from fedloom.server.routes.overview import ROUNDS_SHOWN, look
from fedloom.server.web.render import page
from fedloom.server.web.runs import tail

router = APIRouter(include_in_schema=False, route_class=LivePart)


@router.get("/")
async def overview(request: Request, here: Here, who: Viewer) -> HTMLResponse:
    """Health, runs, the open rounds, curves and alerts."""
    found = await look(here)
    list_models = here.world.ledger.list_models
    stored = await here.world.in_reader(list_models, limit=20) if not found.runs else []
    tails = {run.id: await tail(here, run.id) for run in found.runs}
    return page(
        request, here, who, "overview", page="overview", found=found, models=stored, tails=tails,
        rounds_shown=ROUNDS_SHOWN,
    )  # fmt: skip
