"""Adds the console to the application: pages, static files, the documentation, error pages."""

from fastapi import Depends, FastAPI, Request
from starlette import types
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from fedloom.server.access.principal import Principal
from fedloom.server.access.shield import PRINCIPAL
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.web import (
    audit,
    clients,
    compare,
    enrolment,
    logs,
    models,
    overview,
    privacy,
    rounds,
    runs,
    submit,
)
from fedloom.server.web.documentation import Documentation
from fedloom.server.web.render import STATIC, page

YEAR_S = 365 * 24 * 3600


class _Stamped(StaticFiles):
    """Static files whose URLs change with their content, so browsers may cache them."""

    async def get_response(self, path: str, scope: types.Scope) -> Response:
        """A file, with a cache header if its URL has a stamp."""
        answer = await super().get_response(path, scope)
        if answer.status_code == 200 and b"v=" in scope.get("query_string", b""):
            answer.headers["cache-control"] = f"public, max-age={YEAR_S}, immutable"
        return answer


def fault_page(request: Request, status: int, fault: str) -> Response | None:
    """An error as a page for browsers; None for API paths and for clients other than browsers."""
    accepts = request.headers.get("accept", "")
    if request.url.path.startswith("/v1/") or "text/html" not in accepts:
        return None
    unknown = Principal(name="", scope=Scope.VIEWER, how="")
    who: Principal = request.scope.get(PRINCIPAL) or unknown
    context: ConsoleContext = request.app.state.context
    values = {"fault": fault, "code": status, "is_missing": status == 404}
    return page(request, context, who, "fault", page="", status=status, **values)


def _note_version(request: Request) -> None:
    """Note the version of the hub before a page reads anything; see `render.page`."""
    request.state.version = request.app.state.context.live.version


def mount(app: FastAPI) -> None:
    """Add the pages and their files to the application."""
    app.mount("/static", _Stamped(directory=STATIC), name="static")
    app.mount("/docs", Documentation(), name="documentation")
    pages = (
        overview,
        submit,
        runs,
        rounds,
        compare,
        clients,
        models,
        privacy,
        enrolment,
        audit,
        logs,
    )
    for each in pages:
        app.include_router(each.router, dependencies=[Depends(_note_version)])
