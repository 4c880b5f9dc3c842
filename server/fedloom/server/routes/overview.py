"""Routes of the overview and of curves."""

from typing import Annotated

from fastapi import APIRouter, Query

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.http.shared_answers import Shared
from fedloom.server.queries import overview as queries
from fedloom.server.queries.overview import Compared, CurvesView, Overview

router = APIRouter(tags=["overview"], responses=FAULTS, route_class=Shared)


@router.get("/overview")
async def overview(context: Context, _: Viewer) -> Overview:
    """Health, alerts, active runs and traffic."""
    return await queries.overview(context)


@router.get("/runs/{run}/curves")
async def run_curves(context: Context, _: Viewer, run: str) -> CurvesView:
    """Metrics of a run's committed rounds, in columns."""
    return await queries.run_curves(context, run)


@router.get("/curves")
async def compare(
    context: Context,
    _: Viewer,
    runs: Annotated[str, Query(max_length=2000, description="ids, separated by commas")],
) -> Compared:
    """The curves of several runs."""
    return await queries.compared(context, runs.split(","))
