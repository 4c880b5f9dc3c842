"""Routes of the server's status and its one-time tokens."""

import hashlib
import ssl
import time
from typing import Annotated

from fastapi import APIRouter, Query

from fedloom.protocol.version import __version__
from fedloom.server.access.scopes import Admin, Viewer
from fedloom.server.actions import tokens as actions
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.check_ins import check_ins
from fedloom.server.queries.overview import replicas
from fedloom.server.queries.tokens import tokens_page
from fedloom.server.queries.views import IssuedToken, NewToken, ServerView, TokenList, TokenView
from fedloom.server.rounds.manager import ACTIVE

router = APIRouter(responses=FAULTS)


@router.get("/server", tags=["server"])
async def server(context: Context, _: Viewer) -> ServerView:
    """The server's version, addresses and status."""
    active = await context.in_ledger(context.ledger.list_runs, ACTIVE)
    now = time.time()
    return ServerView(
        federation=context.config.federation,
        version=__version__,
        started_at=context.started_at,
        uptime_s=now - context.started_at,
        clients_online=len(context.fleet),
        runs_active=len(active),
        fleet=context.fleet_address,
        enrolment=context.enrolment_address,
        console=context.console_url,
        names=list(context.config.certificate_names),
        tls=context.authority is not None,
        root_sha256=_root_sha256(context.authority),
        max_model_bytes=context.config.max_model_bytes,
        epoch=None if context.replica is None else context.replica.epoch,
        replicas=replicas(context),
        check_ins=check_ins(context),
    )


def _root_sha256(authority: Authority | None) -> str | None:
    if authority is None:
        return None
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.root_pem.decode())).hexdigest()


@router.post("/tokens", tags=["tokens"], status_code=201)
async def create_token(context: Context, principal: Admin, wish: NewToken) -> IssuedToken:
    """Create a one-time token. Its text is only in this answer."""
    return await actions.create_token(context, principal, wish)


@router.get("/tokens", tags=["tokens"])
async def list_tokens(
    context: Context,
    _: Viewer,
    before: Annotated[str, Query(max_length=80, description="last id of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> TokenList:
    """Tokens, newest first, without their secrets."""
    return await tokens_page(context, before=before, limit=limit)


@router.post("/tokens/{token_id}/cancel", tags=["tokens"])
async def cancel_token(context: Context, principal: Admin, token_id: str) -> TokenView:
    """Cancel an unused token; repeating this changes nothing."""
    return await actions.cancel_token(context, principal, token_id)
