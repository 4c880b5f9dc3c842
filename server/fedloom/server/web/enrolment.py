"""The page of enrolment: tokens and the authority's certificates."""

import io
from datetime import UTC
from functools import partial
from typing import Any

import segno
from cryptography import x509
from fastapi import APIRouter, Request

from fedloom.protocol.errors import UsageError
from fedloom.server.access.scopes import Admin, Viewer, form_of
from fedloom.server.actions.tokens import create_token
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.tokens import listed_tokens
from fedloom.server.queries.views import MAX_TTL_S, NewToken
from fedloom.server.web.lists import Answer, ListColumn, listing, utc
from fedloom.server.web.render import enrol_at, page, trusted

router = APIRouter(include_in_schema=False, route_class=LivePart)

STATES = {"unused": "pending", "used": "enrolled", "expired": "expired"}
"""A token's status, as the page shows it."""

LIVES = ((3600.0, "an hour"), (24 * 3600.0, "a day"), (7 * 24 * 3600.0, "a week"))


COLUMNS = (
    ListColumn("client", "Client", lambda t: t.client),
    ListColumn("state", "State", lambda t: STATES[t.status.value]),
    ListColumn("created", "Created", lambda t: utc(t.created_at), first=True),
    ListColumn("used", "Used", lambda t: utc(t.used_at), first=True),
    ListColumn("expires", "Expires", lambda t: utc(t.expires_at), first=True),
    ListColumn("id", "Id", lambda t: t.id),
)


@router.get("/enrolment", response_model=None)
async def enrolment(request: Request, context: Context, who: Viewer) -> Answer:
    """Tokens that match the filters, newest first unless sorted; the authority's certificates."""
    return await _page(request, context, who)


@router.post("/enrolment", response_model=None)
async def make(request: Request, context: Context, who: Admin) -> Answer:
    """Create a token and show it once."""
    form = await form_of(request)
    name = form.get("client", "").strip()
    try:
        ttl_s = min(float(form.get("ttl_s") or 24 * 3600.0), MAX_TTL_S)
        issued = await create_token(context, who, NewToken(client=name or None, ttl_s=ttl_s))
    except (UsageError, ValueError) as error:
        return await _page(request, context, who, status=422, fault=str(error), client=name)
    command = f"fedloom client enroll --server {enrol_at(context)} --token {issued.token}"
    return await _page(request, context, who, issued=issued, command=command, qr=qr(command))


async def _page(request: Request, context: ConsoleContext, who: Any, **more: Any) -> Answer:
    asked = listing(request, "q", "state", key="created", descending=True, own="newest first")
    state = asked.filters["state"]
    if state and state not in STATES:
        raise UsageError(f"Expected state as one of {', '.join(STATES)}, got {state[:80]!r}.")
    read = partial(listed_tokens, context, asked.cut(), text=asked.filters["q"], state=state)
    await asked.read(context.in_reader, read, COLUMNS)
    if asked.as_csv:
        return await asked.csv("tokens")
    total = await context.in_reader(context.ledger.num_tokens)
    authority = context.authority
    shown = None if authority is None else await context.in_disk(_certificates, authority)
    values = {"issued": None, "command": "", "qr": "", "fault": "", "client": "", **more}
    return page(
        request, context, who, "enrolment", page="enrolment",
        list=asked, num_all=total, lives=LIVES, authority=shown, states=STATES,
        **values,
    )  # fmt: skip


def _certificates(authority: Authority) -> list[dict[str, Any]]:
    """The authority's certificates, root first."""
    names = ("root", "issuing authority")
    loaded = x509.load_pem_x509_certificates(authority.trusted_pem)
    return [
        {
            "what": names[index] if index < len(names) else "retired issuing authority",
            "from": certificate.not_valid_before_utc.replace(tzinfo=UTC).timestamp(),
            "until": certificate.not_valid_after_utc.replace(tzinfo=UTC).timestamp(),
            "serial": f"{certificate.serial_number:x}",
        }
        for index, certificate in enumerate(loaded)
    ]


def qr(text: str) -> Any:
    """A QR code as SVG."""
    out = io.BytesIO()
    segno.make(text, error="m").save(
        out, kind="svg", xmldecl=False, svgns=False, border=3, omitsize=True, title="QR code"
    )
    return trusted(out.getvalue().decode())
