"""Reads clients: filtered page by page, one by name, and the tasks of one."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fedloom.protocol import supernodes
from fedloom.protocol.errors import UsageError
from fedloom.server.access.studies import matching_studies, sees, studies
from fedloom.server.client_failures import Failures
from fedloom.server.ledger import Filter
from fedloom.server.ledger.lists.order import Cut, in_order
from fedloom.server.ledger.rows import ClientDetailRow, ClientRow, values
from fedloom.server.queries import client_views as views
from fedloom.server.queries.check_ins import due_at, is_due
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.masking import conduct_words
from fedloom.server.queries.rounds import member_values

_FILTERS = {
    views.ClientState.REVOKED: {"status": "revoked"},
    views.ClientState.QUARANTINED: {"hold": "quarantine"},
    views.ClientState.DRAINED: {"hold": "drain"},
}
_UNDECIDED = ("offered", "training")
MOST_SHARES = 200
"""Values of a label that are listed."""
RATED = 3
"""Fewest ended tasks whose success rate has a level."""
_LEVELS = ((0.9, "ok"), (0.5, "warn"), (0.0, "bad"))
_AT_ONCE = 500
"""Clients whose details one query reads."""

SORTED_BY = {
    "seen": "seen_at", "certificate": "certificate_until", "counted": "counted",
    "asked": "asked", "success": "success_rate", "staleness": "staleness",
    "version": "version", "labels": "labels", "note": "note", "enrolled": "enrolled_at",
    "last_counted": "last_counted_at", "failures": "failures", "study": "study",
}  # fmt: skip
"""What the ledger sorts each column by."""


async def clients_page(
    context: ConsoleContext,
    *,
    q: str = "",
    state: views.ClientState | None = None,
    version: str = "",
    label: str = "",
    study: str = "",
    after: str = "",
    limit: int = 100,
) -> views.ClientList:
    """Clients that ever enrolled, by name.

    Args:
        context: of the server.
        q: part of a name, note or label.
        state: to list; None for any.
        version: of the SDK, or its beginning.
        label: name, or name=value.
        study: that they are in; `-` for those in none.
        after: name of the last client of the page before.
        limit: most clients.
    """
    found = await matching(context, q=q, state=state, version=version, label=label, study=study)
    rest = [name for name in found if name > after] if after else found
    page = rest[:limit]
    return views.ClientList(
        clients=await look_up(context, page),
        total=len(found),
        more=page[-1] if len(rest) > limit else None,
    )


async def failing(context: ConsoleContext) -> list[ClientRow]:
    """Failing clients that no operator has excluded, those with most recent failures first."""
    least = context.config.clients.failing_after
    return await context.in_reader(context.ledger.failing, least)


def _fits(context: ConsoleContext, row: ClientRow, state: views.ClientState) -> bool:
    return state is views.ClientState.FAILING or cools_until(context, row) is not None


def cools_until(context: ConsoleContext, row: ClientRow) -> float | None:
    """When a client gets offers again; None if it does not cool off."""
    until = _failures(row).cools_until(context.config.clients)
    return until if until > time.time() else None


def _failures(row: ClientRow) -> Failures:
    return Failures(row.failures or 0, row.failed_at or 0.0)


async def matching(
    context: ConsoleContext,
    *,
    q: str = "",
    state: views.ClientState | None = None,
    version: str = "",
    label: str = "",
    study: str = "",
) -> list[str]:
    """Names of the clients that match filters, as `clients_page` takes them, in order."""
    which = Filter(
        text=q, version=version, label=label, **(_FILTERS.get(state, {}) if state else {})
    )
    names = await context.in_reader(context.ledger.names, which)
    if state in (views.ClientState.FAILING, views.ClientState.COOLING):
        fits = {row.name for row in await failing(context) if _fits(context, row, state)}
        names = [name for name in names if name in fits]
    found = matching_studies(study)
    if found is not None:
        names = [name for name in names if context.fleet.study_of(name) in found]
    passes = await _presence(context, state)
    return [name for name in names if passes(name)] if passes else names


async def listed_clients(
    context: ConsoleContext, page: Cut, **filters: Any
) -> tuple[list[views.ClientView], int]:
    """A page of the clients that match filters, by name unless sorted, and how many match.

    Args:
        context: of the server.
        page: to cut.
        filters: as of `matching`.

    Raises:
        UsageError: there is no such column.
    """
    found = await matching(context, **filters)
    if page.sort:
        value = await _sort_value(context, page.sort)
        found = in_order(found, value, descending=page.descending)
    shown = found[page.offset : page.offset + page.limit]
    views_of = {}
    for begin in range(0, len(shown), _AT_ONCE):
        for view in await look_up(context, shown[begin : begin + _AT_ONCE]):
            views_of[view.name] = view
    return [views_of[name] for name in shown if name in views_of], len(found)


async def _sort_value(context: ConsoleContext, column: str) -> Callable[[str], Any]:
    """The value of a column of each client; the fleet knows what the ledger does not."""
    get, now = context.fleet.get, time.time()
    if column == "client":
        return lambda name: name
    if column == "task":
        return lambda name: (s := get(name)) and s.task and "{}/{}".format(*s.task)
    if column == "state":
        status = await context.in_reader(context.ledger.client_values, "status")
        hold = await context.in_reader(context.ledger.client_values, "hold")
        due = await context.in_reader(context.ledger.client_values, "due_at")
        fail = {row.name: cools_until(context, row) for row in await failing(context)}
        return lambda name: _state(
            context, name, status=status.get(name, ""), hold=hold.get(name),
            cools=fail.get(name), fails=name in fail, due=due.get(name),
        )  # fmt: skip
    if column not in SORTED_BY:
        known = ", ".join(("client", "state", "task", *SORTED_BY))
        raise UsageError(f"Expected a column to sort by ({known}), got {column[:80]!r}.")
    values = await context.in_reader(context.ledger.client_values, SORTED_BY[column])
    if column == "seen":
        return lambda name: now if get(name) is not None else values.get(name)
    return values.get


async def supernode_notes(context: ConsoleContext) -> list[str]:
    """What an operator should know of SuperNodes before a run; nothing without any."""
    if studies() is not None:
        return []
    which = Filter(status="active", label=f"{supernodes.KIND}={supernodes.SUPERNODE}")
    names = await context.in_reader(context.ledger.names, which)
    count = len(names)
    if not count:
        return []
    are = "1 client is a SuperNode" if count == 1 else f"{count} clients are SuperNodes"
    return [f"{are} of Flower. There {supernodes.LOSSES}."]


async def _presence(
    context: ConsoleContext, state: views.ClientState | None
) -> Callable[[str], bool] | None:
    """A predicate for states that only the fleet knows; None for other states."""
    due: dict[str, float | None] = {}
    if state in (views.ClientState.DUE, views.ClientState.OFFLINE):
        due = await context.in_reader(context.ledger.client_values, "due_at")
    get = context.fleet.get

    def works(name: str) -> bool:
        session = get(name)
        return session is not None and session.task is not None

    def comes(name: str) -> bool:
        return get(name) is None and is_due(context, due.get(name))

    match state:
        case views.ClientState.ONLINE:
            return lambda name: get(name) is not None
        case views.ClientState.DUE:
            return comes
        case views.ClientState.OFFLINE:
            return lambda name: get(name) is None and not comes(name)
        case views.ClientState.WORKING:
            return works
        case views.ClientState.IDLE:
            return lambda name: get(name) is not None and not works(name)
    return None


async def versions(context: ConsoleContext) -> views.Versions:
    """Number of clients per version of the SDK, of those that are seen."""
    if studies() is None:
        return views.Versions(versions=await context.in_reader(context.ledger.versions))
    known = await context.in_reader(context.ledger.client_values, "version")
    seen = [v or "" for name, v in known.items() if sees(context.fleet.study_of(name))]
    return views.Versions(versions=dict(Counter(seen)))


async def label_shares(context: ConsoleContext, label: str, run: str = "") -> views.LabelShares:
    """How often clients were asked, by the value of a label.

    Args:
        context: of the server.
        label: name.
        run: id, or its beginning, whose rounds count; empty for all.

    Raises:
        NotFoundError: there is no such run.
    """
    its = await context.run_id(run) if run else ""
    found = await context.in_reader(context.ledger.label_shares, label, its, studies())
    shares = [
        views.LabelShareView.model_validate(each, from_attributes=True)
        for each in found[:MOST_SHARES]
    ]
    return views.LabelShares(
        label=label,
        clients=sum(each.clients for each in found),
        asked=sum(each.asked for each in found),
        shares=shares,
    )


async def parts_page(
    context: ConsoleContext, name: str, *, before: float = 0, limit: int = 50
) -> views.PartList:
    """A client's tasks in rounds, newest first; with `before`, those offered earlier.

    Raises:
        NotFoundError: no client has this name.
    """
    await one_client(context, name)
    parts = await newest_parts(context, name, before=before, limit=limit)
    return views.PartList(parts=parts, more=parts[-1].offered_at if len(parts) == limit else None)


async def newest_parts(
    context: ConsoleContext, name: str, *, before: float = 0, limit: int = 0
) -> list[views.PartView]:
    """A client's tasks in rounds, newest first; a limit of 0 gives all."""
    seen = studies()

    def read() -> list[views.PartView]:
        rows = context.ledger.parts_of(name, before=before, limit=limit, studies=seen)
        return [views.PartView.model_validate(member_values(row, row.kind)) for row in rows]

    return await context.in_reader(read)


async def look_up(context: ConsoleContext, names: Sequence[str]) -> list[views.ClientView]:
    """Some clients by name."""
    rows = await context.in_reader(context.ledger.look_up, names, studies())
    return [_view(context, row) for row in rows]


async def one_client(context: ConsoleContext, name: str) -> views.ClientView:
    """A client.

    Raises:
        NotFoundError: no client has this name.
    """
    found = await look_up(context, [name])
    if not found or not sees(found[0].study):
        raise NotFoundError(f"There is no client {name[:80]!r}: see `fedloom client list`.")
    [client] = found
    device = context.devices.get(name)
    if device is not None:
        client.device = views.DeviceView.model_validate(device)
    return client


def _view(context: ConsoleContext, row: ClientDetailRow) -> views.ClientView:
    session = context.fleet.get(row.name)
    task = None if session is None or session.task is None else "{}/{}".format(*session.task)
    # A client may have come from another study, with its last error and even its task.
    if session is not None and session.task and not sees(context.runs.study_of(session.task[0])):
        task = None
    phases = row.phases
    undecided = sum(phases.get(name, 0) for name in _UNDECIDED)
    counted, asked = phases.get("reported", 0), sum(phases.values())
    ended = asked - undecided - phases.get("declined", 0)
    rate = counted / ended if ended else None
    cools = cools_until(context, row)
    shown = {
        **values(row),
        **{name: phases.get(name, 0) for name in ("declined", "failed", "refused", "late", "lost")},
        "online": session is not None,
        "task": task,
        "seen_at": time.time() if session is not None else row.seen_at,
        "asked": asked,
        "counted": counted,
        "state": _state(
            context,
            row.name,
            status=row.status,
            hold=row.hold,
            cools=cools,
            fails=_failures(row).is_failing(context.config.clients),
            due=row.due_at,
        ),
        "due_at": due_at(context, row),
        "success_rate": rate,
        "success_level": None if rate is None or ended < RATED else level_of(rate),
        "failures": row.failures or 0,
        "last_error": _last_error(row) if sees(study_of_failure(context, row)) else None,
        "cools_until": cools,
        "conduct": _conduct(context, row.name),
    }
    return views.ClientView.model_validate(shown)


def _conduct(context: ConsoleContext, name: str) -> list[views.ConductView]:
    """How active runs treat a client for its part in their masking sessions."""
    return [
        views.ConductView(run=run, words=words)
        for run, conduct in context.runs.conducts().items()
        if (words := conduct_words(conduct, name)) and sees(context.runs.study_of(run))
    ]


def study_of_failure(context: ConsoleContext, row: ClientRow) -> str:
    """The study of the run in which a client failed last."""
    return context.runs.study_of(row.failed_run or "")


def level_of(success_rate: float) -> str:
    """The level of a success rate: ok, warn or bad."""
    return next(level for least, level in _LEVELS if success_rate >= least)


def _state(
    context: ConsoleContext,
    name: str,
    *,
    status: str,
    hold: str | None,
    cools: float | None,
    fails: bool,
    due: float | None,
) -> views.ClientState:
    session = context.fleet.get(name)
    if status == "revoked":
        return views.ClientState.REVOKED
    if hold:
        quarantined = hold == "quarantine"
        return views.ClientState.QUARANTINED if quarantined else views.ClientState.DRAINED
    if cools is not None:
        return views.ClientState.COOLING
    if fails:
        return views.ClientState.FAILING
    if session is None:
        return views.ClientState.DUE if is_due(context, due) else views.ClientState.OFFLINE
    return views.ClientState.IDLE if session.task is None else views.ClientState.WORKING


def _last_error(row: ClientRow) -> views.LastError | None:
    if row.failed_at is None:
        return None
    return views.LastError(
        text=row.failed_why or "", run=row.failed_run or "", round=row.failed_round or 0,
        at=row.failed_at,
    )  # fmt: skip
