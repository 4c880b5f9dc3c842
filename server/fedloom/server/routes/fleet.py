"""Routes about the server itself and its tokens."""

import hashlib
import logging
import ssl
import time
from typing import Annotated, Any

import sqlalchemy.exc
from fastapi import APIRouter, Query

from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import check_client_name
from fedloom.protocol.version import __version__
from fedloom.server.access.scopes import Admin, Viewer
from fedloom.server.client_names import draw_name
from fedloom.server.ledger import Filter
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.parts import FAULTS, ConflictError, Here, NotFoundError, Parts
from fedloom.server.queries.views import (
    IssuedToken,
    NewToken,
    ServerView,
    TokenList,
    TokenStatus,
    TokenView,
)
from fedloom.server.rounds.manager import ACTIVE

log = logging.getLogger(__name__)

router = APIRouter(responses=FAULTS)


@router.get("/server", tags=["server"])
async def server(here: Here, _: Viewer) -> ServerView:
    """What this server is and how it does."""
    world = here.world
    active = await world.in_ledger(world.ledger.list_runs, ACTIVE)
    now = time.time()
    return ServerView(
        federation=world.config.federation,
        version=__version__,
        started_at=here.started_at,
        uptime_s=now - here.started_at,
        clients_online=len(world.fleet),
        runs_active=len(active),
        fleet=here.fleet,
        enrolment=here.enrolment,
        console=here.console,
        names=list(world.config.names),
        tls=here.authority is not None,
        root_sha256=_root_sha256(here.authority),
        max_model_bytes=world.config.max_model_bytes,
    )


def _root_sha256(authority: Authority | None) -> str | None:
    if authority is None:
        return None
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.root_pem.decode())).hexdigest()


@router.post("/tokens", tags=["tokens"], status_code=201)
async def create_token(here: Here, principal: Admin, wish: NewToken) -> IssuedToken:
    """Make a one-time token. Its text is in this answer and nowhere else."""
    if here.authority is None:
        raise ConflictError(
            "Expected a server with certificates, got one on plaintext, where clients need no "
            "token: run it without --plaintext-loopback."
        )
    client = await _free_name(here) if wish.client is None else check_client_name(wish.client)
    await here.audit(principal, "token.create", client, {"ttl_s": wish.ttl_s})
    created_at = time.time()
    expires_at = created_at + wish.ttl_s
    token = await _store_token(here, here.authority.root_pin, client, expires_at)
    here.world.live.changed("tokens")
    log.info("token %s made for %s", token.id, client)
    return IssuedToken(
        id=token.id,
        client=client,
        token=token.text(),
        created_at=created_at,
        expires_at=expires_at,
        enrolment=here.enrolment,
    )


async def _store_token(here: Parts, pin: bytes, client: str, expires_at: float) -> tokens.Token:
    world = here.world
    while True:
        token = tokens.make_token(pin)
        hashed = tokens.secret_hash(token.secret)
        try:
            await world.in_ledger(world.ledger.add_token, token.id, hashed, client, expires_at)
        except sqlalchemy.exc.IntegrityError:
            continue  # the short id was drawn before
        return token


async def _free_name(here: Parts) -> str:
    world = here.world
    taken = await world.in_ledger(world.ledger.promised_names)
    taken.update(await world.in_ledger(world.ledger.names, Filter()))
    while (name := draw_name()) in taken:
        pass
    return name


@router.get("/tokens", tags=["tokens"])
async def list_tokens(
    here: Here,
    _: Viewer,
    before: Annotated[str, Query(max_length=80, description="last id of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> TokenList:
    """Tokens, newest first, without their secrets."""
    world = here.world
    rows = await world.in_reader(world.ledger.list_tokens, before=before, limit=limit)
    total = await world.in_reader(world.ledger.num_tokens)
    now = time.time()
    listed = [TokenView(**row, status=_token_status(row, now)) for row in rows]
    more = listed[-1].id if len(listed) == limit else None
    return TokenList(tokens=listed, total=total, more=more)


@router.post("/tokens/{token_id}/cancel", tags=["tokens"])
async def cancel_token(here: Here, principal: Admin, token_id: str) -> TokenView:
    """Make a token worthless that nobody has used. Twice changes nothing."""
    world = here.world
    row = await world.in_ledger(world.ledger.token, token_id)
    if row is None:
        raise NotFoundError(
            f"Expected a token's id, got {token_id[:80]!r}: see `fedloom token list`."
        )
    if row["used_at"] is not None:
        raise ConflictError(
            f"Expected a token that nobody has used, but {row['client']} enrolled with it: revoke "
            f"the client instead (`fedloom client revoke {row['client']}`)."
        )
    await here.audit(principal, "token.cancel", token_id, {"client": row["client"]})
    await world.in_ledger(world.ledger.cancel_token, token_id)
    world.live.changed("tokens")
    found = await world.in_ledger(world.ledger.token, token_id)
    after = {**(found or row)}
    del after["secret_hash"]
    return TokenView(**after, status=_token_status(after, time.time()))


def _token_status(row: dict[str, Any], now: float) -> TokenStatus:
    if row["used_at"] is not None:
        return TokenStatus.USED
    return TokenStatus.EXPIRED if now >= row["expires_at"] else TokenStatus.UNUSED
