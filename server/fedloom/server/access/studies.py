"""What a principal that is limited to studies may use, and what it sees.

Every route is closed to it but those in `ROUTES`, which answer with the objects of its studies
alone: a new route is closed until it is named here. Objects of others do not exist for it (404).
`tests/server/access/test_studies.py` walks all routes.
"""

from contextvars import ContextVar

from fastapi import Request

from fedloom.server.access.principal import Principal

ROUTES = frozenset(
    {
        "routes.access.me",
        "routes.access.change_own_password",
        "routes.application.describe",
        "routes.runs.submit",
        "routes.runs.describe",
        "routes.runs.check",
        "routes.runs.list_runs",
        "routes.runs.status",
        "routes.runs.list_refusals",
        "routes.runs.roll_back",
        "routes.runs.steer",
        "routes.rounds.list_rounds",
        "routes.rounds.round_detail",
        "routes.rounds.list_sessions",
        "routes.rounds.session_detail",
        "web.rounds.one_session",
        "routes.overview.overview",
        "routes.overview.run_curves",
        "routes.overview.compare",
        "routes.clients.list_clients",
        "routes.clients.get_client",
        "routes.clients.list_parts",
        "routes.clients.note_client",
        "routes.clients.label_client",
        "routes.clients.hold_client",
        "routes.client_groups.act_on_clients",
        "routes.models.add_model",
        "routes.models.list_models",
        "routes.models.get_model",
        "routes.events.events",
        "web.overview.overview",
        "web.runs.runs",
        "web.runs.run",
        "web.rounds.rounds",
        "web.rounds.one_round",
        "web.compare.compare",
        "web.clients.clients",
        "web.clients.client",
        "web.models.models",
        "web.models.model",
        "web.submit.new",
        "web.submit.begin",
        "web.login.log_out",
    }
)
"""Functions of routes in `fedloom.server`."""

NO_STUDY = "-"
"""As a filter: what is of no study. No study has this name."""

_studies: ContextVar[frozenset[str] | None] = ContextVar("_studies", default=None)
"""Of the principal of this request."""


def limit(principal: Principal, request: Request) -> bool:
    """Apply a principal's limit to this request; False if the route is closed to it."""
    _studies.set(principal.studies)
    endpoint = getattr(request.scope.get("route"), "endpoint", None)
    name = f"{getattr(endpoint, '__module__', '')}.{getattr(endpoint, '__name__', '')}"
    return is_open(principal, name.removeprefix("fedloom.server."))


def is_open(principal: Principal, route: str) -> bool:
    """Whether a route is open to a principal, by its function; pages show links to these alone."""
    return principal.studies is None or route in ROUTES


def studies() -> frozenset[str] | None:
    """The studies that this request sees; None for all, and for what is of no study."""
    return _studies.get()


def matching_studies(study: str) -> frozenset[str] | None:
    """Those of `studies` that a filter leaves: all if it is empty, else the one that it names."""
    wanted = "" if study == NO_STUDY else study
    return (frozenset({wanted}) if sees(wanted) else frozenset()) if study else studies()


def sees(study: str | None) -> bool:
    """Whether this request sees objects of a study; empty or None for those without one."""
    found = _studies.get()
    return found is None or (study or "") in found
