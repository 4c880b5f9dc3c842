"""Routes of the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Query

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.queries.audit import AuditHead, AuditPage, audit_head, audit_page

router = APIRouter(prefix="/audit", tags=["audit"], responses=FAULTS)

Text = Annotated[str, Query(max_length=300)]
Moment = Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)]


@router.get("")
async def list_entries(
    *,
    context: Context,
    _: Viewer,
    who: Text = "",
    action: Annotated[Text, Query(description="the whole action, or its first word")] = "",
    subject: Text = "",
    since: Moment = None,
    until: Moment = None,
    before: Annotated[int | None, Query(ge=1, le=2**53, description="only lower ids")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """A page of the trail, newest first."""
    wanted = Filter(
        who=who, action=action, subject=subject, since=since, until=until, before=before
    )
    return await audit_page(context, wanted, limit)


@router.get("/head")
async def head(context: Context, _: Viewer) -> AuditHead:
    """The newest entry. Keep it elsewhere, for `fedloom audit verify --anchor`."""
    return await audit_head(context)
