"""Pages of the audit trail."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

from pydantic import BaseModel, Field

from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.lists.order import Cut
from fedloom.server.queries.context import ConsoleContext


class AuditEntry(BaseModel):
    """An entry of the trail."""

    id: int
    at: float
    who: Annotated[str, Field(description="of a principal, a client, or the server")]
    how: Annotated[str, Field(description="socket, session, token, oidc, password, link, ...")]
    action: Annotated[str, Field(description="thing.verb; thing.verb.failed if it failed")]
    subject: str
    detail: Annotated[str, Field(description="JSON, as hashed")]
    previous: Annotated[str, Field(description="hash of the entry before")]
    hash: str


class AuditHead(BaseModel):
    """The newest entry. A copy kept elsewhere proves that earlier entries are unchanged."""

    id: int
    hash: str


class AuditPage(BaseModel):
    """Entries, newest first."""

    entries: list[AuditEntry]
    next_before: Annotated[
        int | None, Field(description="`before` of the next page; null on the last")
    ]
    head: AuditHead


async def listed_entries(
    context: ConsoleContext, wanted: Filter, page: Cut
) -> Callable[[], Iterator[AuditEntry]]:
    """What reads a page of the entries that match a filter, newest first unless sorted."""
    await context.access.audit_log.store()
    rows = partial(context.ledger.trail.listed, wanted, page)
    return lambda: (AuditEntry(**row) for row in rows())


async def audit_page(context: ConsoleContext, wanted: Filter, limit: int) -> AuditPage:
    """The entries that match a filter, newest first, at most `limit`."""
    await context.access.audit_log.store()
    trail = context.ledger.trail
    rows = await context.in_reader(trail.page, wanted, limit + 1)
    page = rows[:limit]
    return AuditPage(
        entries=[AuditEntry(**row) for row in page],
        next_before=page[-1]["id"] if len(rows) > limit else None,
        head=await audit_head(context),
    )


async def audit_head(context: ConsoleContext) -> AuditHead:
    """The newest entry."""
    await context.access.audit_log.store()
    head = await context.in_reader(context.ledger.trail.head)
    return AuditHead(id=head.id, hash=head.hash)
