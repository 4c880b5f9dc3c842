"""Login to the console by password, single sign-on or a link of `fedloom console`, and logout.

A link's secret is in the query and so in the browser's history: it works once, within two minutes.
Prefetching does not use it up. A link followed from another site must be confirmed, so that no
site can log an operator in unnoticed.
"""

from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader

from fedloom.protocol.errors import FedloomError, UnavailableError
from fedloom.server.access.errors import TooManyTriesError, UnauthenticatedError
from fedloom.server.access.oidc import PENDING_S
from fedloom.server.access.scopes import Public, Viewer, form_of
from fedloom.server.access.throttle import network_of
from fedloom.server.http.dependencies import Context
from fedloom.server.http.head_requests import HEAD_ONLY
from fedloom.server.ledger.access.accounts import LIFE_S
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError

TEMPLATES = Path(__file__).parent / "templates"

_SEE_OTHER = 303
_OIDC_COOKIE = "fedloom-oidc"

router = APIRouter(include_in_schema=False)


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)


@router.get("/login")
async def login_page(context: Context, request: Request, _: Public) -> Response:
    """The login form."""
    notice = "You are logged out." if "out" in request.query_params else ""
    return await _page(context, next=local(request.query_params.get("next", "")), notice=notice)


@router.get("/login/style.css")
async def style(_: Public) -> Response:
    """The form's style, readable without a login."""
    return PlainTextResponse((TEMPLATES / "login.css").read_text("utf-8"), media_type="text/css")


@router.post("/login")
async def log_in(context: Context, request: Request, _: Public) -> Response:
    """Log in by password."""
    form, gate = await form_of(request), context.gate
    name, there = form.get("name", ""), local(form.get("next", ""))
    try:
        secret = await gate.log_in(name, form.get("password", ""), gate.address(request))
    except (UnauthenticatedError, TooManyTriesError, UnavailableError) as error:
        page = await _page(context, _status(error), fault=str(error), name=name[:64], next=there)
        if isinstance(error, TooManyTriesError):
            page.headers["Retry-After"] = error.retry_after
        return page
    return await entered(context, request, secret, there)


@router.get("/login/link")
async def follow_link(context: Context, request: Request, _: Public) -> Response:
    """Log in by a one-time link."""
    headers = request.headers
    if "prefetch" in headers.get("sec-purpose", headers.get("purpose", "")):
        return PlainTextResponse("Login links are not prefetched.", 503)
    code = request.query_params.get("code", "")
    # Link previews of chats and mail send HEAD, which must not use up the link.
    elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if elsewhere or HEAD_ONLY in request.scope:
        return await _page(context, code=code[:64])
    return await _by_link(context, request, code)


@router.post("/login/link")
async def confirm_link(context: Context, request: Request, _: Public) -> Response:
    """Log in by a confirmed one-time link."""
    return await _by_link(context, request, (await form_of(request)).get("code", ""))


@router.get("/login/oidc")
async def begin_oidc(context: Context, request: Request, _: Public) -> Response:
    """Redirect to the OpenID Connect provider."""
    if context.gate.oidc is None:
        raise NotFoundError("Single sign-on is off: server.toml has no [oidc].")
    there = local(request.query_params.get("next", ""))
    try:
        network = network_of(context.gate.address(request))
        away, kept = await context.gate.oidc.begin(there, network)
    except UnavailableError as error:
        return await _page(context, 503, fault=str(error), next=there)
    answer = RedirectResponse(away, _SEE_OTHER)
    answer.set_cookie(
        _OIDC_COOKIE, kept, max_age=int(PENDING_S), path="/login/oidc",
        httponly=True, samesite="lax", secure=context.gate.site.secure,
    )  # fmt: skip
    return answer


@router.get("/login/oidc/callback")
async def end_oidc(context: Context, request: Request, _: Public) -> Response:
    """Finish the login that the provider redirected here."""
    gate = context.gate
    if gate.oidc is None:
        raise NotFoundError("Single sign-on is off: server.toml has no [oidc].")
    kept, address = request.cookies.get(_OIDC_COOKIE, ""), gate.address(request)
    try:
        name, scope, there = await gate.oidc.end(dict(request.query_params), kept)
    except (UnauthenticatedError, UnavailableError) as error:
        gate.audit_failure("", "oidc", address)
        return await _page(context, _status(error), fault=str(error))
    secret = await gate.open_session(name, "oidc", scope, address)
    answer = await entered(context, request, secret, there)
    answer.delete_cookie(_OIDC_COOKIE, path="/login/oidc", secure=gate.site.secure, httponly=True)
    return answer


@router.post("/logout")
async def log_out(context: Context, request: Request, principal: Viewer) -> Response:
    """End the session."""
    await context.audit(principal, "logout", principal.name)
    await context.gate.log_out(request)
    answer = RedirectResponse("/login?out", _SEE_OTHER)
    answer.delete_cookie(context.gate.site.cookie, secure=context.gate.site.secure, httponly=True)
    return answer


async def entered(
    context: ConsoleContext, request: Request, secret: str, there: str
) -> RedirectResponse:
    """Replace the browser's session by a new one and redirect it.

    The cookie is Lax: with Strict, a console link in a mail or chat would show the login form.
    Requests that change something are never GET and need the session's CSRF token.
    """
    await context.gate.log_out(request)
    answer = RedirectResponse(there, _SEE_OTHER)
    answer.set_cookie(
        context.gate.site.cookie, secret, max_age=int(LIFE_S), path="/",
        httponly=True, samesite="lax", secure=context.gate.site.secure,
    )  # fmt: skip
    return answer


def local(path: str) -> str:
    """The path if it leads to this server, else `/`.

    >>> local("/runs/digits?tab=rounds"), local("//evil.example"), local("https://evil.example")
    ('/runs/digits?tab=rounds', '/', '/')
    """
    parts = urlsplit(path)
    plain = path.isprintable() and path.isascii() and "\\" not in path and len(path) <= 1000
    if not plain or parts.scheme or parts.netloc or not path.startswith("/") or path[1:2] == "/":
        return "/"
    return "/" if path.startswith("/login") else path


async def _by_link(context: ConsoleContext, request: Request, code: str) -> Response:
    try:
        secret = await context.gate.log_in_by_link(code, context.gate.address(request))
    except UnauthenticatedError as error:
        return await _page(context, _status(error), fault=str(error))
    return await entered(context, request, secret, "/")


async def _page(context: ConsoleContext, status: int = 200, **values: str) -> HTMLResponse:
    has_users = bool(await context.access.in_access(context.access.accounts.users))
    oidc = context.gate.oidc.config.label if context.gate.oidc else ""
    federation = context.config.federation
    known = {"next": "/", "federation": federation, "passwords": has_users, "oidc": oidc}
    text = _environment().get_template("login.html").render(**{**known, **values})
    return HTMLResponse(text, status)


def _status(error: FedloomError) -> int:
    if isinstance(error, TooManyTriesError):
        return 429
    return 503 if isinstance(error, UnavailableError) else 401
