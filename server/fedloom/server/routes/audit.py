"""Routes about the audit trail: who did what, when."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from fedloom.server.access.scopes import Viewer
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.queries.parts import FAULTS, Here

router = APIRouter(prefix="/audit", tags=["audit"], responses=FAULTS)

Text = Annotated[str, Query(max_length=300)]
Moment = Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)]


class AuditEntry(BaseModel):
    """An entry of the trail."""

    id: int
    at: float
    who: Annotated[str, Field(description="of a principal, a client, or the server")]
    how: Annotated[str, Field(description="socket, session, token, oidc, password, link, ...")]
    action: Annotated[str, Field(description="thing.verb; ends in .failed where it was not done")]
    subject: str
    detail: Annotated[str, Field(description="JSON, as it was hashed")]
    previous: Annotated[str, Field(description="hash of the entry before")]
    hash: str


class AuditHead(BaseModel):
    """The newest entry: kept elsewhere, it shows that nothing before it was changed or cut."""

    id: int
    hash: str


class AuditPage(BaseModel):
    """Entries, newest first."""

    entries: list[AuditEntry]
    next_before: Annotated[
        int | None, Field(description="`before` of the next page; null on the last")
    ]
    head: AuditHead


@router.get("")
async def list_entries(
    *,
    here: Here,
    _: Viewer,
    who: Text = "",
    action: Annotated[Text, Query(description="the whole, or its first word")] = "",
    subject: Text = "",
    since: Moment = None,
    until: Moment = None,
    before: Annotated[int | None, Query(ge=1, le=2**53, description="entries of lower ids")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """A page of the trail, newest first."""
    trail = here.world.ledger.trail
    wanted = Filter(
        who=who, action=action, subject=subject, since=since, until=until, before=before
    )
    rows = await here.world.in_reader(trail.page, wanted, limit + 1)
    head = await here.world.in_reader(trail.head)
    page = rows[:limit]
    return AuditPage(
        entries=[AuditEntry(**row) for row in page],
        next_before=page[-1]["id"] if len(rows) > limit else None,
        head=AuditHead(id=head.id, hash=head.hash),
    )


@router.get("/head")
async def head(here: Here, _: Viewer) -> AuditHead:
    """The newest entry. Keep it elsewhere: `fedloom audit verify --anchor` holds it against us."""
    found = await here.world.in_reader(here.world.ledger.trail.head)
    return AuditHead(id=found.id, hash=found.hash)
