"""The page of the audit trail."""

from typing import Any

from fastapi import APIRouter, Request

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.queries.audit import audit_head, listed_entries
from fedloom.server.web.lists import Answer, ListColumn, listing, utc
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

COLUMNS = (
    ListColumn("id", "No.", lambda e: e.id, num=True, first=True),
    ListColumn("at", "When", lambda e: utc(e.at), first=True),
    ListColumn("who", "Who", lambda e: e.who),
    ListColumn("how", "By", lambda e: e.how),
    ListColumn("action", "Action", lambda e: e.action),
    ListColumn("subject", "Subject", lambda e: e.subject),
    ListColumn("detail", "Detail", lambda e: e.detail),
    ListColumn("previous", "Previous hash", lambda e: e.previous, shown=False),
    ListColumn("hash", "Hash", lambda e: e.hash),
)


@router.get("/audit", response_model=None)
async def audit(request: Request, context: Context, principal: Viewer) -> Answer:
    """Entries that match the filters, newest first unless sorted."""
    asked = listing(
        request, "who", "action", "subject", key="id", descending=True, own="newest first"
    )
    wanted: dict[str, Any] = {**asked.filters}
    entries = await listed_entries(context, Filter(**wanted), asked.cut())
    await asked.read(context.in_reader, entries, COLUMNS)
    if asked.as_csv:
        return await asked.csv("audit")
    return page(
        request, context, principal, "audit", page="audit",
        list=asked, head=await audit_head(context),
    )  # fmt: skip
