"""The page of the privacy ledger: what clients have spent over all runs, and the budgets."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries.privacy import ledger_and_spenders, unbounded
from fedloom.server.queries.privacy_views import NO_CONTROLS, PrivateRunView
from fedloom.server.web.lists import Answer, ListColumn, listing
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

RUNS_SHOWN, CLIENTS_SHOWN = 20, 50


def _number(name: str, title: str, **more: Any) -> ListColumn:
    """A column of a number."""
    return ListColumn(name, title, lambda row: getattr(row, name), num=True, first=True, **more)


def _epsilon(name: str, title: str) -> ListColumn:
    """A column of an epsilon; infinite where no bound is known."""
    return ListColumn(name, title, lambda row: unbounded(getattr(row, name)), num=True, first=True)


BUDGETS = (
    ListColumn("label", "Clients of", lambda p: p.label),
    ListColumn("budget", "Budget ε", lambda p: p.budget and p.budget.epsilon, num=True, first=True),
    _number("delta", "Delta"),
    _epsilon("spent", "Spent ε"),
    _epsilon("reserved", "Reserved ε"),
    _number("left", "Left ε"),
    _number("over", "Over", shown=False, hint="clients whose reserved epsilon exceeds the budget"),
    _number("clients", "Clients"),
    _number("public", "In runs without [privacy]", shown=False),
    ListColumn("worst", "Spent most", lambda p: p.worst),
    ListColumn("relation", "Relation", lambda p: p.relation),
)


def _own_epsilon(row: PrivateRunView) -> float | None:
    return unbounded(row.epsilon) if row.private else None


RUNS = (
    ListColumn("run", "Run", lambda r: r.run),
    ListColumn("state", "State", lambda r: r.state),
    ListColumn("mechanism", "Mechanism", lambda r: r.mechanism if r.private else None),
    _number("rounds", "Rounds"),
    _number("planned", "Planned", shown=False, hint="rounds that it will have released"),
    ListColumn("epsilon", "ε alone", _own_epsilon, num=True, first=True),
    _number("clients", "Clients"),
    _number("barred", "Barred", hint="clients that it may not draw"),
)
CLIENTS = (
    ListColumn("client", "Client", lambda c: c.client),
    _epsilon("spent", "Spent ε"),
    _epsilon("reserved", "Reserved ε"),
    _number("delta", "Delta"),
    _number("runs", "Private runs"),
    _number("public", "Runs without [privacy]"),
    ListColumn("relation", "Relation", lambda c: c.relation),
)


@router.get("/privacy", response_model=None)
async def privacy(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    label: Annotated[str, Query(max_length=250, pattern=NO_CONTROLS)] = "",
) -> Answer:
    """Populations, runs, and the clients of a label; three lists."""
    label = label.strip()
    budgets = listing(request, "label", key="label", own="by label")
    runs = listing(request, "q", prefix="runs", key="created", own="newest first", limit=RUNS_SHOWN)
    clients = listing(
        request, "q", prefix="clients", key="client", own="by name", limit=CLIENTS_SHOWN
    )
    found, spenders = await ledger_and_spenders(
        context, label=label, text=clients.filters["q"], page=clients.cut()
    )
    part = runs.filters["q"].lower()
    budgets.cut_out(found.populations, BUDGETS)
    runs.cut_out([row for row in found.runs if part in row.run.lower()], RUNS)
    clients.fill(spenders, CLIENTS)
    for asked, name in ((budgets, "budgets"), (runs, "runs"), (clients, "clients")):
        if asked.as_csv:
            return await asked.csv(f"privacy-{name}")
    return page(
        request, context, who, "privacy", page="privacy",
        budgets=budgets, runs=runs, clients=clients, label=label, has_runs=bool(found.runs),
    )  # fmt: skip
