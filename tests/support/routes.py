"""The routes of an application, as FastAPI serves them."""

from dataclasses import dataclass

from fastapi import routing

from fedloom.server.access.scopes import declared_scope


@dataclass(frozen=True)
class Row:
    """A method of a route.

    Attributes:
        scope: what it declares, or None.
        path: its full path, with parameters in braces.
    """

    method: str
    path: str
    scope: object


def table(app):
    """Every method of every route of FastAPI's, by path."""
    return sorted(
        (
            Row(method, found.path, declared_scope(found.dependant))
            for found in routing.iter_route_contexts(app.routes)
            if isinstance(found.original_route, routing.APIRoute)
            for method in sorted(found.methods) + ["HEAD"] * ("GET" in found.methods)
        ),
        key=lambda row: (row.path, row.method),
    )
