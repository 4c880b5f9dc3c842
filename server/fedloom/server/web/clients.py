"""Pages of clients: a list with search and filters, and one client with its tasks."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fedloom.protocol import supernodes
from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries import clients as queries
from fedloom.server.queries.client_views import ClientState, PartList
from fedloom.server.queries.clients import clients_page, one_client, parts_page
from fedloom.server.queries.privacy import one_spender
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 100
PARTS_SHOWN = 50


@router.get("/clients")
async def clients(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    q: Annotated[str, Query(max_length=120)] = "",
    state: str = "",
    version: Annotated[str, Query(max_length=120)] = "",
    label: Annotated[str, Query(max_length=250)] = "",
    after: Annotated[str, Query(max_length=120)] = "",
) -> HTMLResponse:
    """Clients that match the filters, by name."""
    wanted = ClientState(state) if state in set(ClientState) else None
    found = await clients_page(
        context, q=q, state=wanted, version=version, label=label, after=after, limit=A_PAGE
    )
    versions = (await queries.versions(context)).versions
    asked = {"q": q, "state": state, "version": version, "label": label}
    return page(
        request, context, who, "clients", page="clients",
        found=found, asked=asked, after=after, states=list(ClientState), versions=versions,
        is_asked=any(asked.values()),
    )  # fmt: skip


@router.get("/clients/{name}")
async def client(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    name: str,
    before: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0,
) -> HTMLResponse:
    """One client: its status, its tasks and the actions on it."""
    found = await one_client(context, name)
    parts = await parts_page(context, name, before=before, limit=PARTS_SHOWN)
    spent = await one_spender(context, name)
    losses = supernodes.LOSSES if supernodes.is_supernode(found.own_labels) else ""
    return page(
        request, context, who, "client", page="clients",
        c=found, parts=parts, before=before, strip=_strip(parts), spent=spent,
        losses=losses,
    )  # fmt: skip


def _strip(parts: PartList) -> list[tuple[str, str]]:
    """CSS class and label of a mark for each of the latest tasks, oldest first."""
    kinds = {"reported": "ok", "declined": "wait", "offered": "wait", "training": "train"}
    return [
        (kinds.get(part.phase, "end"), f"round {part.round} of {part.run}: {part.phase}")
        for part in reversed(parts.parts)
    ]
