"""The one HTTP API: everything an operator can see or do, as JSON under /v1.

The command line is a client of it, and so will be the console, so they cannot differ. It is served
on the Unix socket in the state directory (`fedloom.server.control`); its description is at
/v1/openapi.json. Every answer that is not a success is an `ErrorReply`.
"""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fedloom.protocol.errors import (
    FedloomError,
    IntegrityError,
    Refusal,
    UnavailableError,
    UsageError,
)
from fedloom.protocol.version import __version__
from fedloom.server.engine.errors import OperatorRefused
from fedloom.server.pki import Authority
from fedloom.server.routes import events as event_routes
from fedloom.server.routes import fleet as fleet_routes
from fedloom.server.routes import models as model_routes
from fedloom.server.routes import rounds as round_routes
from fedloom.server.routes import runs as run_routes
from fedloom.server.routes.models import BadModelError, TooLargeError
from fedloom.server.routes.parts import ConflictError, NotFoundError, Parts
from fedloom.server.routes.scopes import ForbiddenError, UnauthenticatedError
from fedloom.server.routes.views import ErrorReply, Fault
from fedloom.server.runs import Runs
from fedloom.server.world import World

log = logging.getLogger(__name__)

# The first class that an error is an instance of decides.
_KINDS: tuple[tuple[type[FedloomError], int, str], ...] = (
    (UnauthenticatedError, 401, "denied"),
    (ForbiddenError, 403, "denied"),
    (NotFoundError, 404, "not_found"),
    (ConflictError, 409, "conflict"),
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
    world: World,
    runs: Runs,
    authority: Authority | None,
    *,
    fleet: str = "",
    enrolment: str = "",
) -> FastAPI:
    """The application over a server's parts.

    Args:
        world: shared parts.
        runs: the active runs.
        authority: makes tokens' pins; None on plaintext loopback.
        fleet: host:port where enrolled clients connect, if not as configured.
        enrolment: likewise for devices with a token.
    """
    app = FastAPI(
        title="fedloom server",
        version=__version__,
        description=(__doc__ or "").strip(),
        openapi_url="/v1/openapi.json",
        docs_url=None,  # it would load its scripts from elsewhere
        redoc_url=None,
    )
    app.state.parts = Parts(
        world=world,
        runs=runs,
        authority=authority,
        fleet=fleet or world.config.fleet,
        enrolment=enrolment or world.config.enrolment,
    )
    for each in (event_routes, fleet_routes, model_routes, run_routes, round_routes):
        app.include_router(each.router, prefix="/v1")
    app.add_exception_handler(FedloomError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)
    return app


def _reply(status: int, kind: str, message: str, code: str | None = None) -> JSONResponse:
    body = ErrorReply(error=Fault(message=message, kind=kind, code=code))
    return JSONResponse(body.model_dump(), status)


async def _known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FedloomError)
    status, kind = next((s, k) for c, s, k in _KINDS if isinstance(error, c))
    level = logging.ERROR if status >= 500 else logging.INFO
    log.log(level, "%s %s: %s", request.method, request.url.path, error)
    return _reply(status, kind, str(error), error.code if isinstance(error, Refusal) else None)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = (f"{'.'.join(map(str, e['loc'][1:]) or '')}: {e['msg']}" for e in error.errors())
    return _reply(
        422, "usage", f"Expected a request as /v1/openapi.json says, got {'; '.join(faults)}."
    )


async def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _reply(
        error.status_code, "not_found" if error.status_code == 404 else "usage", error.detail
    )


async def _unknown(_: Request, error: Exception) -> JSONResponse:
    # Starlette raises the error again behind this answer, and uvicorn logs it with its traceback.
    return _reply(500, "internal", f"Unexpected {type(error).__name__}: see the server's log.")
