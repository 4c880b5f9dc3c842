"""Routes of the privacy ledger: what clients have spent over all runs, and budgets."""

from typing import Annotated

from fastapi import APIRouter, Query

from fedloom.server.access.scopes import Admin, Viewer
from fedloom.server.actions import privacy as actions
from fedloom.server.http.dependencies import FAULTS, Context, Preview
from fedloom.server.queries import privacy as queries
from fedloom.server.queries import privacy_views as views

router = APIRouter(prefix="/privacy", tags=["privacy"], responses=FAULTS)

Label = Annotated[
    str, Query(max_length=250, pattern=views.NO_CONTROLS, description="name, or name=value")
]
Delta = Annotated[
    float | None,
    Query(gt=0, lt=1, allow_inf_nan=False, description="default: the budget's, or the runs'"),
]


@router.get("")
async def show(
    context: Context, _: Viewer, label: Label = "", delta: Delta = None
) -> views.PrivacyLedger:
    """What all clients, those of each budget, and those of a label have spent; and the runs."""
    return await queries.privacy_ledger(context, label=label, delta=delta)


@router.get("/clients")
async def list_spenders(
    context: Context,
    _: Viewer,
    *,
    label: Label = "",
    delta: Delta = None,
    after: Annotated[str, Query(max_length=120, description="last client of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> views.SpenderList:
    """Clients that were in a run, by name, with what each has spent."""
    return await queries.spenders_page(context, label=label, delta=delta, after=after, limit=limit)


@router.get("/clients/{name}")
async def get_spender(
    context: Context, _: Viewer, name: str, delta: Delta = None
) -> views.SpenderDetail:
    """What a client has spent, with its runs."""
    return await queries.one_spender(context, name, delta)


@router.post("/budgets")
async def set_budget(
    context: Context, principal: Admin, wish: views.NewPrivacyBudget, preview: Preview = False
) -> views.PrivacyBudgetActed:
    """Set the privacy budget of a label, or of all clients; it replaces the one before."""
    return await actions.set_budget(context, principal, wish, preview=preview)


@router.post("/budgets/remove")
async def remove_budget(
    context: Context, principal: Admin, wish: views.OldPrivacyBudget, preview: Preview = False
) -> views.PrivacyBudgetActed:
    """Remove a privacy budget; what clients have spent stays in the ledger."""
    return await actions.remove_budget(context, principal, wish.label, preview=preview)
