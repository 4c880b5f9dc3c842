"""Reads clients: filtered page by page, one by name, and the tasks of one."""

import time
from collections.abc import Callable, Sequence

from fedloom.protocol import supernodes
from fedloom.server.ledger import Filter
from fedloom.server.ledger.rows import ClientDetailRow, values
from fedloom.server.queries import client_views as views
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.rounds import member_values

_FILTERS = {
    views.ClientState.REVOKED: {"status": "revoked"},
    views.ClientState.QUARANTINED: {"hold": "quarantine"},
    views.ClientState.DRAINED: {"hold": "drain"},
}
_UNDECIDED = ("offered", "training")


async def clients_page(
    context: ConsoleContext,
    *,
    q: str = "",
    state: views.ClientState | None = None,
    version: str = "",
    label: str = "",
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
        after: name of the last client of the page before.
        limit: most clients.
    """
    which = Filter(
        text=q, version=version, label=label, **(_FILTERS.get(state, {}) if state else {})
    )
    names = await context.in_reader(context.ledger.names, which)
    passes = _presence(context, state)
    found = [name for name in names if passes(name)] if passes else names
    rest = [name for name in found if name > after] if after else found
    page = rest[:limit]
    return views.ClientList(
        clients=await look_up(context, page),
        total=len(found),
        more=page[-1] if len(rest) > limit else None,
    )


async def supernode_notes(context: ConsoleContext) -> list[str]:
    """What an operator should know of SuperNodes before a run; nothing without any."""
    which = Filter(status="active", label=f"{supernodes.KIND}={supernodes.SUPERNODE}")
    names = await context.in_reader(context.ledger.names, which)
    count = len(names)
    if not count:
        return []
    are = "1 client is a SuperNode" if count == 1 else f"{count} clients are SuperNodes"
    return [f"{are} of Flower. There {supernodes.LOSSES}."]


def _presence(
    context: ConsoleContext, state: views.ClientState | None
) -> Callable[[str], bool] | None:
    """A predicate for states that only the fleet knows; None for other states."""
    get = context.fleet.get

    def works(name: str) -> bool:
        session = get(name)
        return session is not None and session.task is not None

    match state:
        case views.ClientState.ONLINE:
            return lambda name: get(name) is not None
        case views.ClientState.OFFLINE:
            return lambda name: get(name) is None
        case views.ClientState.WORKING:
            return works
        case views.ClientState.IDLE:
            return lambda name: get(name) is not None and not works(name)
    return None


async def versions(context: ConsoleContext) -> views.Versions:
    """Number of clients per version of the SDK."""
    return views.Versions(versions=await context.in_reader(context.ledger.versions))


async def parts_page(
    context: ConsoleContext, name: str, *, before: float = 0, limit: int = 50
) -> views.PartList:
    """A client's tasks in rounds, newest first; with `before`, those offered earlier.

    Raises:
        NotFoundError: no client has this name.
    """
    await one_client(context, name)
    rows = await context.in_reader(context.ledger.parts_of, name, before=before, limit=limit)
    parts = [views.PartView.model_validate(member_values(row, row.kind)) for row in rows]
    return views.PartList(parts=parts, more=parts[-1].offered_at if len(parts) == limit else None)


async def look_up(context: ConsoleContext, names: Sequence[str]) -> list[views.ClientView]:
    """Some clients by name."""
    rows = await context.in_reader(context.ledger.look_up, names)
    return [_view(context, row) for row in rows]


async def one_client(context: ConsoleContext, name: str) -> views.ClientView:
    """A client.

    Raises:
        NotFoundError: no client has this name.
    """
    found = await look_up(context, [name])
    if not found:
        raise NotFoundError(f"There is no client {name[:80]!r}: see `fedloom client list`.")
    return found[0]


def _view(context: ConsoleContext, row: ClientDetailRow) -> views.ClientView:
    session = context.fleet.get(row.name)
    task = None if session is None or session.task is None else "{}/{}".format(*session.task)
    phases = row.phases
    undecided = sum(phases.get(name, 0) for name in _UNDECIDED)
    counted, asked = phases.get("reported", 0), sum(phases.values())
    ended = asked - undecided - phases.get("declined", 0)
    shown = {
        **values(row),
        **{name: phases.get(name, 0) for name in ("declined", "failed", "refused", "late", "lost")},
        "online": session is not None,
        "task": task,
        "seen_at": time.time() if session is not None else row.seen_at,
        "asked": asked,
        "counted": counted,
        "success_rate": counted / ended if ended else None,
    }
    return views.ClientView.model_validate(shown)
