"""Reads one-time tokens of devices page by page, without their secrets."""

import time
from collections.abc import Iterator

from fedloom.server.ledger.lists.order import Cut
from fedloom.server.ledger.rows import TokenRow, values
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.views import TokenList, TokenStatus, TokenView


async def tokens_page(context: ConsoleContext, *, before: str = "", limit: int = 200) -> TokenList:
    """Tokens older than the id `before`, newest first, at most `limit`."""
    rows = await context.in_reader(context.ledger.list_tokens, before=before, limit=limit)
    total = await context.in_reader(context.ledger.num_tokens)
    listed = [token_view(row) for row in rows]
    more = listed[-1].id if len(listed) == limit else None
    return TokenList(tokens=listed, total=total, more=more)


def listed_tokens(
    context: ConsoleContext, page: Cut, *, text: str = "", state: str = ""
) -> Iterator[TokenView]:
    """A page of the tokens, newest first unless sorted; `text` is a part of the client or id."""
    rows = context.ledger.listed_tokens(page, text=text, state=state)
    return (token_view(row) for row in rows)


def token_view(row: TokenRow) -> TokenView:
    """A token with its current status."""
    if row.used_at is not None:
        status = TokenStatus.USED
    else:
        status = TokenStatus.EXPIRED if time.time() >= row.expires_at else TokenStatus.UNUSED
    return TokenView.model_validate({**values(row), "status": status})
