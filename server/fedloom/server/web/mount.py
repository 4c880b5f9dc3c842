"""The console as part of the application: its pages, its files, and its faults as pages."""

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from fedloom.server.web import overview, runs
from fedloom.server.web.render import STATIC

YEAR_S = 365 * 24 * 3600


class _Stamped(StaticFiles):
    """Files whose addresses change with their content, so that browsers may keep them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, to be kept."""
        answer = await super().get_response(path, scope)
        if answer.status_code == 200 and b"v=" in scope.get("query_string", b""):
            answer.headers["cache-control"] = f"public, max-age={YEAR_S}, immutable"
        return answer


def mount(app: FastAPI) -> None:
    """Add the pages and their files to the application."""
    app.mount("/static", _Stamped(directory=STATIC), name="static")
    for each in (overview, runs):
        app.include_router(each.router)
