"""The HTTP API: everything an operator can see or do, as JSON under /v1.

The command line and the console use it. It is served on the Unix socket in the state directory
(`fedloom.server.http.unix_socket`) and, for users who log in or have an API token, on a TCP port
(`fedloom.server.http.tcp_listener`). Its description is at /v1/openapi.json. Every error is an
`ErrorReply`.
"""

import asyncio
import logging
from dataclasses import fields
from urllib.parse import urlencode

import sqlalchemy as sa
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fedloom.protocol.errors import (
    FedloomError,
    IntegrityError,
    Refusal,
    UnavailableError,
    UsageError,
    printable,
)
from fedloom.protocol.version import __version__
from fedloom.server.access.errors import (
    ForbiddenError,
    HiddenError,
    TooManyTriesError,
    UnauthenticatedError,
)
from fedloom.server.access.gate import Gate
from fedloom.server.access.oidc import Oidc
from fedloom.server.access.principal import LOCAL_USER
from fedloom.server.access.scopes import Viewer, guard
from fedloom.server.access.shield import PRINCIPAL
from fedloom.server.access.site import Site
from fedloom.server.context import ServerContext
from fedloom.server.engine.errors import OperatorRefused
from fedloom.server.http.dependencies import context_of
from fedloom.server.http.head_requests import HeadOnly
from fedloom.server.http.shared_answers import Answers
from fedloom.server.ledger.access.accounts import LastAdminError
from fedloom.server.ledger.store import unavailable
from fedloom.server.metrics.replica import ReplicaState
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import ConflictError, NotFoundError
from fedloom.server.queries.views import ErrorReply, Fault
from fedloom.server.rounds.manager import Runs
from fedloom.server.routes import access as access_routes
from fedloom.server.routes import audit as audit_routes
from fedloom.server.routes import client_groups as group_routes
from fedloom.server.routes import clients as client_routes
from fedloom.server.routes import events as event_routes
from fedloom.server.routes import fleet as fleet_routes
from fedloom.server.routes import lineage as lineage_routes
from fedloom.server.routes import logs as log_routes
from fedloom.server.routes import metrics as metric_routes
from fedloom.server.routes import models as model_routes
from fedloom.server.routes import overview as overview_routes
from fedloom.server.routes import privacy as privacy_routes
from fedloom.server.routes import rounds as round_routes
from fedloom.server.routes import runs as run_routes
from fedloom.server.routes.models import BadModelError, TooLargeError
from fedloom.server.storage.context import StorageContext
from fedloom.server.web import login
from fedloom.server.web.mount import fault_page, mount
from fedloom.strategies.privacy import MissingAccountant

log = logging.getLogger(__name__)

SOON_S = 60.0
"""Time after the start when the API's description is built: it takes half a second of a core, which
a server that starts, and reads what its last process left, has better use for."""

_about = APIRouter()

# The first class that matches an error applies.
_KINDS: tuple[tuple[type[FedloomError], int, str], ...] = (
    (UnauthenticatedError, 401, "denied"),
    (ForbiddenError, 403, "denied"),
    (TooManyTriesError, 429, "denied"),
    (NotFoundError, 404, "not_found"),
    (HiddenError, 404, "not_found"),
    (ConflictError, 409, "conflict"),
    (LastAdminError, 409, "conflict"),
    (OperatorRefused, 409, "conflict"),
    (TooLargeError, 413, "usage"),
    (UsageError, 422, "usage"),
    (Refusal, 403, "refused"),
    (BadModelError, 422, "integrity"),
    (IntegrityError, 500, "integrity"),
    (UnavailableError, 503, "unavailable"),
    (FedloomError, 500, "internal"),
)


def create_app(
    server: ServerContext,
    runs: Runs,
    authority: Authority | None,
    *,
    fleet: str = "",
    enrolment: str = "",
    site: Site | None = None,
    oidc: Oidc | None = None,
    replica: ReplicaState | None = None,
) -> FastAPI:
    """Build the application; on a TCP port, wrap it in a `Shield`.

    Args:
        server: its contexts.
        runs: the active runs.
        authority: issues certificates; None on plaintext loopback.
        fleet: bound host:port for enrolled clients; empty for the configured one.
        enrolment: bound host:port for devices with a token; empty for the configured one.
        site: of the console; None if it does not listen.
        oidc: logins through a provider; None for none.
        replica: who drives; None for a server alone.
    """
    app = FastAPI(
        title="fedloom server",
        version=__version__,
        description=(__doc__ or "").strip(),
        openapi_url=None,  # see `describe`, which needs a scope
        docs_url=None,  # it would load scripts from another site
        redoc_url=None,
        dependencies=[Depends(guard)],
    )
    app.state.answers = Answers()
    devices = server.fleet
    app.state.context = ConsoleContext(
        **{each.name: getattr(server.storage, each.name) for each in fields(StorageContext)},
        config=devices.config,
        access=server.access,
        fleet=devices.fleet,
        devices=devices.devices,
        check_in_counts=devices.check_in_counts,
        uploads=devices.uploads,
        downloads=devices.downloads,
        extra_downloads=devices.extra_downloads,
        records=devices.records,
        refusals=devices.refusals,
        live=devices.live,
        log_ring=server.log_ring,
        meters=devices.meters,
        signing=devices.signing,
        runs=runs,
        authority=authority,
        gate=Gate(server.access, site or Site(), oidc),
        fleet_address=fleet or devices.config.fleet,
        enrolment_address=enrolment or devices.config.enrolment,
        console_url=site.url if site else "",
        replica=replica,
    )
    app.include_router(login.router)
    app.include_router(metric_routes.router)
    for each in (
        access_routes,
        audit_routes,
        client_routes,
        group_routes,
        event_routes,
        overview_routes,
        fleet_routes,
        lineage_routes,
        model_routes,
        privacy_routes,
        run_routes,
        round_routes,
        log_routes,
    ):
        app.include_router(each.router, prefix="/v1")
    app.include_router(client_routes.versions, prefix="/v1")
    app.include_router(_about, prefix="/v1")
    mount(app)
    app.add_middleware(HeadOnly)
    app.add_exception_handler(FedloomError, _known)
    app.add_exception_handler(MissingAccountant, _missing)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _cut)
    app.add_exception_handler(sa.exc.OperationalError, _no_ledger)
    app.add_exception_handler(Exception, _unknown)
    return app


@_about.get("/openapi.json", include_in_schema=False)
async def describe(request: Request, _: Viewer) -> JSONResponse:
    """The description of this API, as OpenAPI."""
    app: FastAPI = request.app
    found = await asyncio.to_thread(app.openapi)  # the first time takes a third of a second
    schemes = {"token": {"type": "http", "scheme": "bearer"}}
    found.setdefault("components", {})["securitySchemes"] = schemes
    return JSONResponse({**found, "security": [{"token": []}]})


async def describe_soon(app: FastAPI, after_s: float = SOON_S) -> None:
    """Build the description `after_s` seconds after the start, before its first request."""
    await asyncio.sleep(after_s)
    await asyncio.to_thread(app.openapi)


def _reply(
    status: int,
    kind: str,
    message: str,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    text = message.encode("utf-8", "backslashreplace").decode()  # escapes lone surrogates
    body = ErrorReply(error=Fault(message=text, kind=kind, code=code))
    return JSONResponse(body.model_dump(), status, headers)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, FedloomError)
    status, kind = next((s, k) for c, s, k in _KINDS if isinstance(error, c))
    if isinstance(error, UnauthenticatedError) and (to_login := _to_login(request)) is not None:
        return to_login
    # Unauthenticated requests must not push other lines out of the log buffer.
    known = LOCAL_USER in request.scope or PRINCIPAL in request.scope
    level = logging.ERROR if status >= 500 else logging.INFO if known else logging.DEBUG
    log.log(level, "%s %s: %s", request.method, _path(request), printable(str(error)))
    await context_of(request).audit_failure(error)
    code = error.code if isinstance(error, Refusal) else None
    if (shown := fault_page(request, status, str(error))) is not None:
        return shown
    return _reply(status, kind, str(error), code, _headers(error))


def _path(request: Request) -> str:
    """A request's path without line breaks, for the log."""
    return printable(request.url.path, 300)


def _headers(error: FedloomError) -> dict[str, str]:
    if isinstance(error, UnauthenticatedError):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, TooManyTriesError):
        return {"Retry-After": error.retry_after}
    return {}


def _to_login(request: Request) -> Response | None:
    """A redirect to the login page for a browser; None for a program."""
    if request.url.path.startswith("/v1/"):
        return None
    if "hx-request" in request.headers:  # htmx would insert the login page into the page
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    if "text/html" not in request.headers.get("accept", "") or request.method != "GET":
        return None
    there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?{urlencode({'next': there})}", 303)


async def _missing(request: Request, error: Exception) -> Response:
    return await _known(request, UsageError(str(error)))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, e['loc'][1:]) or '')}: {e['msg']}" for e in error.errors()]
    if (shown := fault_page(request, 422, f"{'; '.join(faults)}.")) is not None:
        return shown
    return _reply(
        422, "usage", f"The request does not match /v1/openapi.json: {'; '.join(faults)}."
    )


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if (shown := fault_page(request, error.status_code, error.detail)) is not None:
        return shown
    kind = "not_found" if error.status_code == 404 else "usage"
    headers = dict(error.headers or {})
    if "GET" in headers.get("Allow", "").split(", "):
        headers["Allow"] += ", HEAD"  # added by `HeadOnly`
    return _reply(error.status_code, kind, error.detail, headers=headers)


async def _cut(_: Request, __: Exception) -> JSONResponse:
    return _reply(400, "usage", "The request's body was incomplete or too long.")


async def _no_ledger(request: Request, error: Exception) -> Response:
    assert isinstance(error, sa.exc.OperationalError)
    log.error("%s %s: the ledger: %s", request.method, _path(request), error.orig)
    await context_of(request).audit_failure(error)
    why = str(unavailable(error))
    if (shown := fault_page(request, 503, why)) is not None:
        return shown
    return _reply(503, "unavailable", why)


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    await context_of(request).audit_failure(error)
    # Starlette raises the error again after this answer, and uvicorn logs its traceback.
    return _reply(500, "internal", f"Internal error {type(error).__name__}: see the server's log.")
