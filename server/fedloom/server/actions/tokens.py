"""Actions on the one-time tokens of devices: create and cancel."""

import logging
import time
from functools import partial

import sqlalchemy.exc

from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import check_client_name
from fedloom.server.access.principal import Principal
from fedloom.server.client_names import draw_name
from fedloom.server.ledger import Filter
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import ConflictError, NotFoundError
from fedloom.server.queries.tokens import token_view
from fedloom.server.queries.views import IssuedToken, NewToken, TokenView
from fedloom.server.studies import check_study

log = logging.getLogger(__name__)


async def create_token(
    context: ConsoleContext, principal: Principal, wish: NewToken
) -> IssuedToken:
    """Create a one-time token. Its text is only in the result.

    Raises:
        ConflictError: the server runs without certificates.
    """
    if context.authority is None:
        raise ConflictError(
            "Clients need no token, as this server runs on plaintext: to enrol devices, run it "
            "without --plaintext-loopback."
        )
    check_study(wish.study)
    client = await _free_name(context) if wish.client is None else check_client_name(wish.client)
    await context.audit(principal, "token.create", client, _detail(wish))
    created_at = time.time()
    expires_at = created_at + wish.ttl_s
    pin = context.authority.root_pin
    token = await _store_token(context, pin, client, expires_at, wish)
    context.live.changed("tokens")
    log.info("created token %s for %s", token.id, client)
    return IssuedToken(
        id=token.id,
        client=client,
        token=token.text(),
        created_at=created_at,
        expires_at=expires_at,
        enrolment=context.enrolment_address,
    )


async def _store_token(
    context: ConsoleContext, pin: bytes, client: str, expires_at: float, wish: NewToken
) -> tokens.Token:
    while True:
        token = tokens.make_token(pin)
        hashed = tokens.secret_hash(token.secret)
        try:
            add = partial(context.ledger.add_token, devices=wish.devices)
            await context.in_ledger(add, token.id, hashed, client, expires_at, wish.study)
        except sqlalchemy.exc.IntegrityError:
            continue  # the short id was drawn before
        return token


def _detail(wish: NewToken) -> dict[str, object]:
    given = {"study": wish.study, "devices": wish.devices}
    return {"ttl_s": wish.ttl_s} | {name: value for name, value in given.items() if value}


async def _free_name(context: ConsoleContext) -> str:
    taken = await context.in_ledger(context.ledger.promised_names)
    taken.update(await context.in_ledger(context.ledger.names, Filter()))
    while (name := draw_name()) in taken:
        pass
    return name


async def cancel_token(context: ConsoleContext, principal: Principal, token_id: str) -> TokenView:
    """Cancel an unused token; repeating this changes nothing.

    Raises:
        NotFoundError: no token has this id.
        ConflictError: it was used.
    """
    row = await context.in_ledger(context.ledger.token, token_id)
    if row is None:
        raise NotFoundError(
            f"There is no token with the id {token_id[:80]!r}: see `fedloom token list`."
        )
    if row.used_at is not None:
        raise ConflictError(
            f"{row.client} enrolled with this token. Revoke the client instead: "
            f"`fedloom client revoke {row.client}`."
        )
    await context.audit(principal, "token.cancel", token_id, {"client": row.client})
    await context.in_ledger(context.ledger.cancel_token, token_id)
    context.live.changed("tokens")
    found = await context.in_ledger(context.ledger.token, token_id)
    return token_view(found or row)
