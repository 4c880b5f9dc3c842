"""The page of the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.queries.audit import audit_page
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 100


@router.get("/audit")
async def audit(
    request: Request,
    context: Context,
    principal: Viewer,
    *,
    who: Annotated[str, Query(max_length=300)] = "",
    action: Annotated[str, Query(max_length=300)] = "",
    subject: Annotated[str, Query(max_length=300)] = "",
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> HTMLResponse:
    """Entries that match the filters, newest first."""
    wanted = Filter(who=who, action=action, subject=subject, before=before)
    found = await audit_page(context, wanted, A_PAGE)
    return page(
        request, context, principal, "audit", page="audit",
        entries=found.entries, more=found.next_before, head=found.head,
        asked={"who": who, "action": action, "subject": subject}, before=before,
    )  # fmt: skip
