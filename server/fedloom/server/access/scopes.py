"""Which scope a route needs, and who asks.

A route says it in its signature, as `principal: Operator`; the tests make their table of who is
refused from that. What declares nothing is for nobody but the socket (`guard`), so a route that
forgot to is closed, not open. A request over the Unix socket comes from the local user, who is an
administrator: the socket's mode lets in nobody else (`fedloom.server.http.unix_socket`).

Source, for what a page has to send with a form: OWASP's Cross-Site Request Forgery Prevention
Cheat Sheet (a token bound to the session, and the Origin).
"""

import hmac
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from fedloom.server.access.errors import ForbiddenError, UnauthenticatedError
from fedloom.server.access.gate import Gate
from fedloom.server.access.principal import LOCAL_USER, Principal
from fedloom.server.access.shield import PRINCIPAL
from fedloom.server.ledger.accounts import Scope

__all__ = [
    "CSRF_FIELD",
    "CSRF_HEADER",
    "Admin",
    "ForbiddenError",
    "Operator",
    "Principal",
    "Public",
    "Scope",
    "UnauthenticatedError",
    "Viewer",
    "declared_scope",
    "form_of",
    "needs",
    "public",
]

CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf_token"

_SAFE = ("GET", "HEAD", "OPTIONS")
_FORM = "application/x-www-form-urlencoded"


def _gate(request: Request) -> Gate:
    gate: Gate = request.app.state.context.gate
    return gate


async def principal_of(request: Request) -> Principal:
    """Who asks.

    Raises:
        UnauthenticatedError: nobody has proved who they are.
    """
    found: Principal | None = request.scope.get(PRINCIPAL)
    if found is None:
        found = request.scope[PRINCIPAL] = await _gate(request).principal(request)
    return found


class needs:  # noqa: N801 - read as a word: Depends(needs(Scope.VIEWER))
    """A dependency that lets nobody through who has less than `scope`.

    Args:
        scope: the least that is enough.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Principal:
        """Who asks.

        Raises:
            UnauthenticatedError: nobody has proved who they are.
            ForbiddenError: they may not, or another site asks in their name.
        """
        principal = await principal_of(request)
        if not principal.scope.covers(self.scope):
            raise ForbiddenError(
                f"Expected the scope {self.scope}, but {principal.name} has {principal.scope}: "
                "ask an administrator."
            )
        if principal.csrf and request.method not in _SAFE:
            check_origin(request)
            await _check_csrf(request, principal.csrf)
        return principal


class public:  # noqa: N801 - likewise
    """A dependency that lets everybody through, and says so.

    A form that is sent without a session still has to come from our own page.
    """

    async def __call__(self, request: Request) -> None:
        """Check where a form comes from.

        Raises:
            ForbiddenError: another site sent it.
        """
        if LOCAL_USER not in request.scope and request.method not in _SAFE:
            check_origin(request)


Viewer = Annotated[Principal, Depends(needs(Scope.VIEWER))]
Operator = Annotated[Principal, Depends(needs(Scope.OPERATOR))]
Admin = Annotated[Principal, Depends(needs(Scope.ADMIN))]
Public = Annotated[None, Depends(public())]


async def guard(request: Request) -> None:
    """Close what declares no scope, to everybody but the socket.

    Raises:
        ForbiddenError: the route declares none.
    """
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if LOCAL_USER in request.scope or dependant is None or _declarations(dependant):
        return
    raise ForbiddenError("Expected a route with a declared scope, got one without.")


def check_origin(request: Request) -> None:
    """Does a request come from a page of ours, as far as the browser says?

    Raises:
        ForbiddenError: it comes from elsewhere.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    site = request.headers.get("sec-fetch-site", "same-origin")
    own = (
        site in ("same-origin", "none")
        if origin is None
        else _gate(request).site.is_own(origin, host)
    )
    if not own:
        raise ForbiddenError(
            "Expected a request from the console's own pages, got one from "
            f"{(origin or 'elsewhere')[:100]!r}: open the console by its own address, or name "
            "that in `console_url` in server.toml."
        )


async def _check_csrf(request: Request, wanted: str) -> None:
    given = request.headers.get(CSRF_HEADER)
    if given is None:  # a stream is not read to look for it
        given = (await form_of(request)).get(CSRF_FIELD, "") if request.method == "POST" else ""
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise ForbiddenError(
            f"Expected the session's token in {CSRF_HEADER} or in the form: reload the page."
        )


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of several with one name the last. None where there is no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    text = (await request.body()).decode("utf-8", "replace")
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}


def declared_scope(dependant: Dependant) -> Scope | None:
    """The scope that a route declares, the highest where it declares several; None without one."""
    found = [d.scope for d in _declarations(dependant) if isinstance(d, needs)]
    return max(found, key=[*Scope].index, default=None)


def _declarations(dependant: Dependant) -> list[needs | public]:
    return [*_walk(dependant)]


def _walk(dependant: Dependant) -> Iterator[needs | public]:
    if isinstance(dependant.call, needs | public):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _walk(inner)
