"""The page of the privacy ledger: what clients have spent over all runs, and the budgets."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries.privacy import privacy_ledger, spenders_page
from fedloom.server.queries.privacy_views import NO_CONTROLS
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 100


@router.get("/privacy")
async def privacy(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    label: Annotated[str, Query(max_length=250, pattern=NO_CONTROLS)] = "",
    after: Annotated[str, Query(max_length=120)] = "",
) -> HTMLResponse:
    """Populations, runs, and the clients of a label by name."""
    found = await privacy_ledger(context, label=label.strip())
    clients = await spenders_page(context, label=label.strip(), after=after, limit=A_PAGE)
    return page(
        request, context, who, "privacy", page="privacy",
        found=found, clients=clients, label=label.strip(), after=after,
    )  # fmt: skip
