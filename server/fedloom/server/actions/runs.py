"""Actions on runs: submit, roll back, and steer (pause, resume, stop, close, abort and others)."""

import asyncio
import json
from dataclasses import replace

from fedloom.protocol import flower_messages
from fedloom.protocol.errors import UsageError
from fedloom.server.access.principal import Principal
from fedloom.server.access.studies import sees, studies
from fedloom.server.actions.consequences import Wish, rollback_words
from fedloom.server.ledger import require_run
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.rows import RunRow
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import ConflictError
from fedloom.server.queries.runs import with_place
from fedloom.server.queries.views import Acted, Action, ActionArguments, NewRun, RunView
from fedloom.server.rounds.manager import NoBudgetError, new_id

MOST_UPLOADS = 100
"""Latest uploads of one model that are looked at."""


async def submit(context: ConsoleContext, principal: Principal, new: NewRun) -> RunView:
    """Start a run from a stored model."""
    spec = await asyncio.to_thread(parse, new.spec)  # the noise of a private run takes seconds
    check_seen(spec)
    _check_app(context, spec)
    digest = await _model(context, principal, spec, new.model)
    run = new_id(spec.name)
    await context.hold(digest)
    await context.audit(principal, "run.submit", run, {"model": digest})
    try:
        await context.runs.submit(new.spec, digest, run)
    except NoBudgetError as error:
        raise UsageError(_budget_words(error)) from None
    return await with_place(context, await _row(context, run))


def check_seen(spec: RunSpec) -> None:
    """Check that a run is of a study that this request sees.

    Raises:
        UsageError: it is of another one, or of none.
    """
    if not sees(spec.study):
        raise UsageError(
            f"Expected `study` in run.toml as one of yours ({', '.join(sorted(studies() or ()))}), "
            f"got {spec.study or 'none'}."
        )


def _check_app(context: ConsoleContext, spec: RunSpec) -> None:
    """Check the `ServerApp` of a run of a study, without the names of the server's others.

    Raises:
        UsageError: the server has no such app.
    """
    wanted = spec.message_settings()
    if studies() is None or wanted is None or wanted.server_app in context.config.flower_apps:
        return
    raise UsageError(
        "Expected flower.server_app as a name in [flower_apps] of server.toml, got "
        f"{wanted.server_app!r}."
    )


async def usable_model(context: ConsoleContext, principal: Principal, wanted: str) -> str:
    """The digest of a model that a principal sees or has uploaded; `wanted` begins it.

    Raises:
        NotFoundError: there is none.
    """
    if studies() is not None and await _has_uploaded(context, principal, wanted):
        return wanted
    return await context.digest(wanted)


async def _model(context: ConsoleContext, principal: Principal, spec: RunSpec, wanted: str) -> str:
    """The digest of the initial model; a run of a Flower `ServerApp` has an empty one.

    Raises:
        UsageError: there is a model with a `ServerApp`, or none without.
    """
    if bool(wanted) == bool(spec.flower):
        raise UsageError(
            "Expected no model with [flower]: its ServerApp makes the model."
            if wanted
            else "Expected a model to start from, got none."
        )
    if wanted:
        return await usable_model(context, principal, wanted)
    return await context.in_disk(context.models.save, flower_messages.as_tensor(b"\0"), {})


def _budget_words(error: NoBudgetError) -> str:
    """Why a budget has no room; without names for those who see only some studies."""
    if studies() is None:
        return str(error)
    return "A privacy budget has no room for this run: ask an administrator of the server."


async def _has_uploaded(context: ConsoleContext, principal: Principal, digest: str) -> bool:
    """Whether this principal has uploaded the whole model; another may have the same name."""
    its = Filter(who=principal.name, action="model.add", subject=digest)
    found = await context.in_reader(context.ledger.trail.page, its, MOST_UPLOADS)
    limits = [json.loads(entry["detail"]).get("studies") for entry in found]
    return sorted(principal.studies or ()) in limits


async def roll_back(
    context: ConsoleContext, principal: Principal, run: str, number: int, *, preview: bool
) -> Acted:
    """Continue a run from the model and strategy state of an earlier committed round.

    Raises:
        ConflictError: the run cannot be rolled back to this round.
    """
    run = await context.run_id(run)
    before = await _row(context, run)
    try:
        point = await context.runs.look_back(before, number)
        words = rollback_words(before, point)
        if not preview:
            await context.audit(principal, "run.rollback", run, {"round": number})
            point = await context.runs.roll_back(run, number)
    except NoBudgetError as error:
        raise ConflictError(_budget_words(error)) from None
    except UsageError as error:
        raise ConflictError(str(error)) from error
    changed = bool(point.undone) and not preview
    return await _acted(context, await _row(context, run), words, changed=changed)


async def steer(
    context: ConsoleContext,
    principal: Principal,
    run: str,
    action: Action,
    arguments: ActionArguments,
    *,
    preview: bool,
) -> Acted:
    """Act on a run or on its open round; requests with the same id take effect once.

    Raises:
        UsageError: an argument of the action is missing.
        ConflictError: the run's state does not allow the action.
    """
    if action is Action.EXTEND and arguments.seconds is None:
        raise UsageError("Expected `seconds` to extend the deadline by, got none.")
    if action is Action.PRIORITY and arguments.priority is None and arguments.share is None:
        raise UsageError("Expected `priority`, `share` or both, got neither.")
    run = await context.run_id(run)
    if arguments.request is None or preview:
        return await _steer(context, principal, run, action, arguments, preview=preview)
    name = f"{run}/{action}/{arguments.request}"
    if (same := context.steering.get(name)) is not None:  # in progress: both get the same answer
        return await asyncio.shield(same)
    answer: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
    context.steering[name] = answer
    try:
        answer.set_result(await _steer(context, principal, run, action, arguments, preview=False))
    except Exception as error:
        answer.set_exception(error)
        answer.exception()  # retrieved, so that asyncio does not log it as unobserved
        raise
    finally:
        del context.steering[name]
        answer.cancel()  # if this one was cancelled, ends the wait of the others
    return await answer


async def _steer(
    context: ConsoleContext,
    principal: Principal,
    run: str,
    action: Action,
    arguments: ActionArguments,
    *,
    preview: bool,
) -> Acted:
    name = arguments.request and f"{run}/{action}/{arguments.request}"
    if name and (known := await context.in_ledger(context.ledger.reply_to, name)) is not None:
        return Acted.model_validate(known)
    row = await _row(context, run)
    wish = _wish(context, row, action, arguments)
    done, words = wish.done(), wish.words()
    if done or preview:
        return await _acted(context, row, done or words, changed=False)
    detail = arguments.model_dump(exclude_defaults=True)
    await context.audit(principal, f"run.{action}", run, detail)
    if done := _wish(context, row, action, arguments).done():  # done by another request meanwhile
        return await _acted(context, await _row(context, run), done, changed=False)
    try:
        changed = await _do(context, run, action, arguments)
    except NoBudgetError as error:
        raise ConflictError(_budget_words(error)) from None
    except UsageError as error:
        raise ConflictError(str(error)) from error
    if not changed:
        words = _wish(context, row, action, arguments).done() or words
    acted = await _acted(context, await _row(context, run), words, changed=changed)
    if name:
        reply = acted.model_dump(mode="json")
        await context.in_ledger(context.ledger.keep_reply, name, reply)
    return acted


async def _acted(context: ConsoleContext, row: RunRow, words: str, *, changed: bool) -> Acted:
    summary = await with_place(context, row)
    return Acted(**summary.model_dump(), changed=changed, consequence=words)


def _wish(context: ConsoleContext, row: RunRow, action: Action, arguments: ActionArguments) -> Wish:
    """The action with the run's current state, which the ledger may not have yet."""
    driver, live = context.runs.get(row.id), None
    if driver is not None:
        row = replace(row, state=driver.engine.state.value)
        live = driver.status().get("round")
    return Wish(action=action, run=row, round=live, arguments=arguments)


async def _do(
    context: ConsoleContext, run: str, action: Action, arguments: ActionArguments
) -> bool:
    """Carry an action out; False if another request has done it meanwhile."""
    match action:
        case Action.EXTEND:
            return await context.runs.command(run, "extend", arguments.seconds or 0.0)
        case Action.GOAL:
            driver = context.runs.get(run)
            goal, quorum = (1, 1) if driver is None else driver.position.goals
            wanted = arguments.goal or goal
            await context.runs.change_goals(run, wanted, arguments.quorum or min(quorum, wanted))
            return True
        case Action.PRIORITY:
            await context.runs.change_rank(run, arguments.priority, arguments.share)
            return True
        case _:
            return await context.runs.command(run, action.value, arguments.reason)


async def _row(context: ConsoleContext, run: str) -> RunRow:
    return require_run(await context.in_ledger(context.ledger.run, run), run)
