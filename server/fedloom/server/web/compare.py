"""The page that compares runs."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.insight.curves import curves, latest, metrics
from fedloom.server.ledger import require_run
from fedloom.server.queries.overview import MAX_COMPARED
from fedloom.server.web.render import page
from fedloom.server.web.settings import chosen

router = APIRouter(include_in_schema=False, route_class=LivePart)


@router.get("/compare")
async def compare(request: Request, context: Context, who: Viewer) -> HTMLResponse:
    """Curves of the ticked runs in one plot, and the differences of their settings."""
    ledger = context.ledger
    rows = await context.in_reader(ledger.list_runs)
    asked = request.query_params.getlist("runs")
    names = dict.fromkeys(name for text in asked for name in text.split(",") if name)
    wanted = [await context.run_id(name) for name in list(names)[:MAX_COMPARED]]
    found: list[dict[str, Any]] = []
    for name in wanted:
        row = require_run(await context.in_reader(ledger.run, name), name)
        drawn = curves(await context.in_reader(ledger.curve_rows, name))
        found.append({"row": row, "curves": drawn, "settings": dict(chosen(row.spec))})
    measured = dict.fromkeys(name for each in found for name in metrics(each["curves"]))
    settings = dict.fromkeys(name for each in found for name in each["settings"])
    return page(
        request, context, who, "compare", page="runs",
        rows=rows[::-1][:200], wanted=wanted, found=found, metrics=list(measured)[:4],
        settings=list(settings), latest=latest,
    )  # fmt: skip
