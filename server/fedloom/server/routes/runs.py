"""Routes about runs: submit, watch, steer."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Query

from fedloom.protocol.errors import UsageError
from fedloom.server.access.scopes import Operator, Principal, Viewer
from fedloom.server.ledger import Row, require_run
from fedloom.server.planning.spec import parse
from fedloom.server.queries.parts import FAULTS, ConflictError, Here, Parts, Preview
from fedloom.server.queries.views import (
    Acted,
    Action,
    ActionArguments,
    Described,
    Description,
    LiveView,
    NewRun,
    RefusalList,
    RefusalView,
    RollBackTo,
    RunDetail,
    RunList,
    RunView,
)
from fedloom.server.rounds.manager import new_id
from fedloom.server.routes.consequences import Wish, rollback_words
from fedloom.server.routes.rounds import rounds_of, run_row

router = APIRouter(prefix="/runs", tags=["runs"], responses=FAULTS)

LATEST_ROUNDS = 50
"""That come with a run; there are pages for the others."""


@router.post("", status_code=201)
async def submit(here: Here, principal: Operator, new: NewRun) -> RunView:
    """Start a run from a stored model."""
    digest = await here.digest(new.model)
    run = new_id(parse(new.spec).name)
    await here.hold(digest)
    await here.audit(principal, "run.submit", run, {"model": digest})
    await here.runs.submit(new.spec, digest, run)
    return _summary(await _row(here, run))


@router.post("/describe")
async def describe(_: Viewer, spec: Described) -> Description:
    """Check a specification and say what a run of it would claim; nothing starts."""
    checked = parse(spec.spec)
    plan = checked.privacy_plan()
    return Description(spec=checked.as_dict(), privacy=None if plan is None else plan.claim())


@router.get("")
async def list_runs(here: Here, _: Viewer) -> RunList:
    """All runs, oldest first."""
    rows = await here.world.in_reader(here.world.ledger.list_runs)
    return RunList(runs=[_summary(row) for row in rows])


@router.get("/{run}")
async def status(here: Here, _: Viewer, run: str) -> RunDetail:
    """A run: what was asked for, its latest rounds, and what happens right now."""
    row = await run_row(here, run)
    rounds = await rounds_of(here, row, limit=LATEST_ROUNDS)
    world, earlier = here.world, 0
    if rounds and rounds[0].number > 1:
        earlier = await world.in_reader(world.ledger.num_rounds, row["id"], before=rounds[0].number)
    driver = here.runs.get(row["id"])
    return RunDetail(
        **_summary(row).model_dump(),
        spec=row["spec"],
        rounds=rounds,
        rounds_earlier=earlier,
        live=None if driver is None else LiveView.model_validate(driver.status()),
    )


@router.get("/{run}/refusals")
async def list_refusals(
    here: Here, _: Viewer, run: str, limit: Annotated[int, Query(ge=1, le=100_000)] = 1000
) -> RefusalList:
    """What clients sent for a run and had turned away, newest first."""
    run = await here.run_id(run)
    rows = await here.world.in_reader(here.world.ledger.list_refusals, run, limit)
    return RefusalList(refusals=[RefusalView(**row) for row in rows])


@router.post("/{run}/rollback")
async def roll_back(
    here: Here, principal: Operator, run: str, wish: RollBackTo, preview: Preview = False
) -> Acted:
    """Go on from the model and the strategy's state of an earlier committed round.

    The open round is given up first. Privacy that was spent stays spent. A run that has ended
    comes back, paused. Doing it twice changes nothing until another round is committed.
    """
    run = await here.run_id(run)
    before = await _row(here, run)
    try:
        point = await here.runs.look_back(before, wish.round)
        words = rollback_words(before, point)
        if not preview:
            await here.audit(principal, "run.rollback", run, {"round": wish.round})
            point = await here.runs.roll_back(run, wish.round)
    except UsageError as error:
        raise ConflictError(str(error)) from error
    changed = bool(point.undone) and not preview
    summary = _summary(await _row(here, run))
    return Acted(**summary.model_dump(), changed=changed, consequence=words)


@router.post("/{run}/{action}")
async def steer(
    here: Here,
    principal: Operator,
    *,
    run: str,
    action: Action,
    arguments: Annotated[ActionArguments | None, Body()] = None,
    preview: Preview = False,
) -> Acted:
    """Pause, resume or stop a run; close, abort, extend or retry its round; change its goal.

    What is so already is no error, and changes nothing.
    """
    arguments = arguments or ActionArguments()
    if action is Action.EXTEND and arguments.seconds is None:
        raise UsageError("Expected how many seconds to extend the deadline by, got none.")
    run = await here.run_id(run)
    if arguments.request is None or preview:
        return await _steer(here, principal, run, action, arguments, preview=preview)
    name = _request(run, action, arguments)
    if (same := here.steering.get(name)) is not None:  # it is being done: there is one answer
        return await asyncio.shield(same)
    answer: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
    here.steering[name] = answer
    try:
        answer.set_result(await _steer(here, principal, run, action, arguments, preview=False))
    except Exception as error:
        answer.set_exception(error)
        answer.exception()  # that nobody else waits for it is no fault
        raise
    finally:
        del here.steering[name]
        answer.cancel()  # whoever waits does not do so for ever
    return await answer


async def _steer(
    here: Parts,
    principal: Principal,
    run: str,
    action: Action,
    arguments: ActionArguments,
    *,
    preview: bool,
) -> Acted:
    if (known := await _replied(here, run, action, arguments)) is not None:
        return known
    row = await _row(here, run)
    wish = _wish(here, row, action, arguments)
    if done := wish.done():
        return Acted(**_summary(row).model_dump(), changed=False, consequence=done)
    words = wish.words()
    if preview:
        return Acted(**_summary(row).model_dump(), changed=False, consequence=words)
    detail = arguments.model_dump(exclude_defaults=True)
    await here.audit(principal, f"run.{action}", run, detail)
    if done := _wish(here, row, action, arguments).done():  # somebody did it meanwhile
        row = await _row(here, run)
        return Acted(**_summary(row).model_dump(), changed=False, consequence=done)
    try:
        await _do(here, run, action, arguments)
    except UsageError as error:
        raise ConflictError(str(error)) from error
    acted = Acted(**_summary(await _row(here, run)).model_dump(), changed=True, consequence=words)
    if arguments.request is not None:
        keep, name = here.world.ledger.keep_reply, _request(run, action, arguments)
        await here.world.in_ledger(keep, name, acted.model_dump(mode="json"))
    return acted


def _wish(here: Parts, row: Row, action: Action, arguments: ActionArguments) -> Wish:
    """What somebody wants, of the run as it is now: the ledger may be behind by a moment."""
    driver, live = here.runs.get(row["id"]), None
    if driver is not None:
        row, live = {**row, "state": driver.engine.state.value}, driver.status().get("round")
    return Wish(action=action, run=row, round=live, arguments=arguments)


async def _replied(
    here: Parts, run: str, action: Action, arguments: ActionArguments
) -> Acted | None:
    """What was answered to this very request before."""
    if arguments.request is None:
        return None
    name = _request(run, action, arguments)
    known = await here.world.in_ledger(here.world.ledger.reply_to, name)
    return None if known is None else Acted.model_validate(known)


def _request(run: str, action: Action, arguments: ActionArguments) -> str:
    return f"{run}/{action}/{arguments.request}"


async def _do(here: Parts, run: str, action: Action, arguments: ActionArguments) -> None:
    match action:
        case Action.EXTEND:
            await here.runs.command(run, "extend", arguments.seconds or 0.0)
        case Action.GOAL:
            driver = here.runs.get(run)
            goal, quorum = (1, 1) if driver is None else driver.position.goals
            wanted = arguments.goal or goal
            await here.runs.change_goals(run, wanted, arguments.quorum or min(quorum, wanted))
        case _:
            await here.runs.command(run, action.value, arguments.reason)


async def _row(here: Parts, run: str) -> Row:
    return require_run(await here.world.in_ledger(here.world.ledger.run, run), run)


def _summary(row: Row) -> RunView:
    return RunView(
        **{name: row[name] for name in RunView.model_fields if name in row},
        rounds_total=row["spec"]["rounds"],
        rounds_committed=row["committed"],
    )
