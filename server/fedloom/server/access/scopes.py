"""The scope that a route needs, and the principal of a request.

A route declares its scope in its signature, as `principal: Operator`. A route that declares none
is closed to all but the Unix socket (`guard`). A request over the socket comes from the local
user, who is an administrator; the socket's mode excludes other users
(`fedloom.server.http.unix_socket`).

Source of the checks on forms: OWASP's Cross-Site Request Forgery Prevention Cheat Sheet (a token
bound to the session, and the Origin header).
"""

import hmac
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from fedloom.server.access.errors import ForbiddenError, HiddenError
from fedloom.server.access.gate import Gate
from fedloom.server.access.principal import LOCAL_USER, Principal
from fedloom.server.access.shield import PRINCIPAL
from fedloom.server.access.studies import limit
from fedloom.server.ledger.access.accounts import Scope

CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf_token"

_SAFE = ("GET", "HEAD", "OPTIONS")
_FORM = "application/x-www-form-urlencoded"


def _gate(request: Request) -> Gate:
    gate: Gate = request.app.state.context.gate
    return gate


async def principal_of(request: Request) -> Principal:
    """The principal of a request, authenticated once per request.

    Raises:
        UnauthenticatedError: the request has no valid credential.
    """
    found: Principal | None = request.scope.get(PRINCIPAL)
    if found is None:
        found = request.scope[PRINCIPAL] = await _gate(request).principal(request)
    return found


class needs:  # noqa: N801 - read as a word: Depends(needs(Scope.VIEWER))
    """A dependency that requires this scope or a higher one."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Principal:
        """The principal of a request.

        Raises:
            UnauthenticatedError: the request has no valid credential.
            ForbiddenError: its scope is too low, or another site sent the request.
        """
        principal = await principal_of(request)
        if not limit(principal, request):
            raise HiddenError("There is no such page for users of a study.")
        if not principal.scope.covers(self.scope):
            raise ForbiddenError(
                f"This needs the scope {self.scope}, but {principal.name} has {principal.scope}. "
                "Ask an administrator."
            )
        if principal.csrf and request.method not in _SAFE:
            check_origin(request)
            await _check_csrf(request, principal.csrf)
        return principal


class public:  # noqa: N801 - likewise
    """A dependency that requires no scope; forms must still come from the console's own pages."""

    async def __call__(self, request: Request) -> None:
        """Check the origin of a form.

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
    """Close routes without a declared scope to all but the Unix socket.

    Raises:
        ForbiddenError: the route declares no scope.
    """
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if LOCAL_USER in request.scope or dependant is None or _declarations(dependant):
        return
    raise ForbiddenError("This route declares no scope: only the Unix socket reaches it.")


def check_origin(request: Request) -> None:
    """Check by the browser's headers that a request comes from a page of the console.

    Raises:
        ForbiddenError: it comes from another site.
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
            f"{(origin or 'another site')[:100]!r}. Open the console by its own address, or set "
            "`console_url` in server.toml."
        )


async def _check_csrf(request: Request, wanted: str) -> None:
    given = request.headers.get(CSRF_HEADER)
    if given is None:  # only a form's body is searched, not a stream
        given = (await form_of(request)).get(CSRF_FIELD, "") if request.method == "POST" else ""
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise ForbiddenError(
            f"Expected the session's token in {CSRF_HEADER} or in the form. Reload the page."
        )


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name; empty if the request has no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    text = (await request.body()).decode("utf-8", "replace")
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}


def declared_scope(dependant: Dependant) -> Scope | None:
    """The highest scope that a route declares; None without one."""
    found = [d.scope for d in _declarations(dependant) if isinstance(d, needs)]
    return max(found, key=[*Scope].index, default=None)


def _declarations(dependant: Dependant) -> list[needs | public]:
    own = [dependant.call] if isinstance(dependant.call, needs | public) else []
    return own + [found for inner in dependant.dependencies for found in _declarations(inner)]
