"""Routes of runs: submit, read and steer them."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Query

from fedloom.server.access.scopes import Operator, Viewer
from fedloom.server.actions import runs as actions
from fedloom.server.http.dependencies import FAULTS, Context, Preview, StudyFilter
from fedloom.server.planning.spec import parse
from fedloom.server.queries import runs as queries
from fedloom.server.queries import views
from fedloom.server.queries.clients import supernode_notes
from fedloom.server.queries.run_check import check_run

router = APIRouter(prefix="/runs", tags=["runs"], responses=FAULTS)


@router.post("", status_code=201)
async def submit(context: Context, principal: Operator, new: views.NewRun) -> views.RunView:
    """Start a run from a stored model."""
    return await actions.submit(context, principal, new)


@router.post("/describe")
async def describe(context: Context, _: Viewer, spec: views.Described) -> views.Description:
    """Check a specification; return its privacy claim and the grid of its sums; start nothing."""
    checked = await asyncio.to_thread(parse, spec.spec)  # calibrating noise takes seconds
    plan = checked.privacy_plan()
    return views.Description(
        spec=checked.as_dict(),
        privacy=None if plan is None else plan.claim(),
        sums=checked.sum_facts(),
        notes=await supernode_notes(context),
    )


@router.post("/check")
async def check(context: Context, who: Viewer, wanted: views.CheckedRun) -> views.RunCheck:
    """Check a run against the clients, from what they did last; start nothing."""
    spec = await asyncio.to_thread(parse, wanted.spec)
    actions.check_seen(spec)
    model = await actions.usable_model(context, who, wanted.model) if wanted.model else ""
    return await check_run(context, spec, model, wanted.tensors)


@router.get("")
async def list_runs(context: Context, _: Viewer, study: StudyFilter = "") -> views.RunList:
    """All runs, or those of a study, oldest first."""
    return await queries.list_runs(context, study)


@router.get("/{run}")
async def status(context: Context, _: Viewer, run: str) -> views.RunDetail:
    """A run with its specification, latest rounds and live status."""
    return await queries.run_detail(context, run)


@router.get("/{run}/refusals")
async def list_refusals(
    context: Context, _: Viewer, run: str, limit: Annotated[int, Query(ge=1, le=100_000)] = 1000
) -> views.RefusalList:
    """Refused requests of clients for a run, newest first."""
    return await queries.refusals(context, run, limit)


@router.post("/{run}/rollback")
async def roll_back(
    context: Context,
    principal: Operator,
    run: str,
    wish: views.RollBackTo,
    preview: Preview = False,
) -> views.Acted:
    """Continue from the model and strategy state of an earlier committed round.

    The open round is dropped first. Privacy that was spent stays spent. A run that has ended is
    paused. Repeating this changes nothing until another round is committed.
    """
    return await actions.roll_back(context, principal, run, wish.round, preview=preview)


@router.post("/{run}/{action}")
async def steer(
    context: Context,
    principal: Operator,
    *,
    run: str,
    action: views.Action,
    arguments: Annotated[views.ActionArguments | None, Body()] = None,
    preview: Preview = False,
) -> views.Acted:
    """Pause, resume or stop a run; close, abort, extend or retry its round; change its goal.

    An action that is already done is no error and changes nothing.
    """
    return await actions.steer(
        context, principal, run, action, arguments or views.ActionArguments(), preview=preview
    )
