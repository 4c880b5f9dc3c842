"""Routes about clients: who they are, what they did, and whether they are asked."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.access.scopes import Operator, Viewer
from fedloom.server.fleet import sessions
from fedloom.server.ledger import Filter
from fedloom.server.queries.client_views import (
    ClientActed,
    ClientList,
    ClientState,
    ClientView,
    Hold,
    Labels,
    Note,
    PartList,
    PartView,
    Versions,
    Why,
)
from fedloom.server.queries.parts import FAULTS, Here, NotFoundError, Parts, Preview
from fedloom.server.rounds.member_records import measured, shape
from fedloom.server.routes.consequences import hold_words, revoke_words

log = logging.getLogger(__name__)

router = APIRouter(prefix="/clients", tags=["clients"], responses=FAULTS)
versions = APIRouter(tags=["clients"], responses=FAULTS)

_FILTERS = {
    ClientState.REVOKED: {"status": "revoked"},
    ClientState.QUARANTINED: {"hold": "quarantine"},
    ClientState.DRAINED: {"hold": "drain"},
}
_UNDECIDED = ("offered", "training")


@router.get("")
async def list_clients(
    here: Here,
    _: Viewer,
    *,
    q: Annotated[str, Query(max_length=120, description="part of a name, note or label")] = "",
    state: ClientState | None = None,
    version: Annotated[str, Query(max_length=120, description="of the SDK, or its start")] = "",
    label: Annotated[str, Query(max_length=250, description="name, or name=value")] = "",
    after: Annotated[str, Query(max_length=120, description="the last of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> ClientList:
    """All clients that ever enrolled, by name, filtered and page by page."""
    which = Filter(
        text=q, version=version, label=label, **(_FILTERS.get(state, {}) if state else {})
    )
    world = here.world
    names = await world.in_reader(world.ledger.names, which)
    passes = _presence(here, state)
    found = [name for name in names if passes(name)] if passes else names
    rest = [name for name in found if name > after] if after else found
    page = rest[:limit]
    return ClientList(
        clients=await look_up(here, page),
        total=len(found),
        more=page[-1] if len(rest) > limit else None,
    )


def _presence(here: Parts, state: ClientState | None) -> Callable[[str], bool] | None:
    """Whether a client is in a state that only the fleet knows of; None where it knows nothing."""
    get = here.world.fleet.get

    def works(name: str) -> bool:
        session = get(name)
        return session is not None and session.task is not None

    match state:
        case ClientState.ONLINE:
            return lambda name: get(name) is not None
        case ClientState.OFFLINE:
            return lambda name: get(name) is None
        case ClientState.WORKING:
            return works
        case ClientState.IDLE:
            return lambda name: get(name) is not None and not works(name)
    return None


@versions.get("/client-versions")
async def list_versions(here: Here, _: Viewer) -> Versions:
    """How many clients run which version of the SDK, as they said when they last came."""
    return Versions(versions=await here.world.in_reader(here.world.ledger.versions))


@router.get("/{name}")
async def get_client(here: Here, _: Viewer, name: str) -> ClientView:
    """A client."""
    return await _one(here, name)


@router.get("/{name}/parts")
async def list_parts(
    here: Here,
    _: Viewer,
    name: str,
    before: Annotated[
        float, Query(ge=0, le=1e12, description="`offered_at` of the page before's last")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> PartList:
    """What a client did in rounds, newest first: its contribution over time."""
    await _one(here, name)
    world = here.world
    rows = await world.in_reader(world.ledger.parts_of, name, before=before, limit=limit)
    parts = [_part(row) for row in rows]
    return PartList(parts=parts, more=parts[-1].offered_at if len(parts) == limit else None)


def _part(row: Any) -> PartView:
    values = {**row, "shape": shape(row), **measured(row, row["kind"])}
    return PartView.model_validate(values)


async def look_up(here: Parts, names: Sequence[str]) -> list[ClientView]:
    """Clients as they are told, by name."""
    rows = await here.world.in_reader(here.world.ledger.look_up, names)
    return [_view(here, row) for row in rows]


async def _one(here: Parts, name: str) -> ClientView:
    found = await look_up(here, [name])
    if not found:
        raise NotFoundError(
            f"Expected an enrolled client, got {name[:80]!r}: see `fedloom client list`."
        )
    return found[0]


def _view(here: Parts, row: dict[str, Any]) -> ClientView:
    session = here.world.fleet.get(row["name"])
    task = None if session is None or session.task is None else "{}/{}".format(*session.task)
    phases: dict[str, int] = row["phases"]
    undecided = sum(phases.get(name, 0) for name in _UNDECIDED)
    counted, asked = phases.get("reported", 0), sum(phases.values())
    ended = asked - undecided - phases.get("declined", 0)
    values = {
        **row,
        **{name: phases.get(name, 0) for name in ("declined", "failed", "refused", "late", "lost")},
        "online": session is not None,
        "task": task,
        "seen_at": time.time() if session is not None else row["seen_at"],
        "asked": asked,
        "counted": counted,
        "success_rate": counted / ended if ended else None,
    }
    return ClientView.model_validate(values)


# ---- actions -------------------------------------------------------------------------------------


@router.post("/{name}/revoke")
async def revoke_client(
    here: Here, principal: Operator, name: str, preview: Preview = False
) -> ClientActed:
    """Revoke a client and all its certificates, and cut its connection at once."""
    world = here.world
    before = await _one(here, name)
    changed = before.status != "revoked"
    words = revoke_words(name, changed=changed)
    if preview:
        return _acted(before, words, changed=False)
    await here.audit(principal, "client.revoke", name)
    await world.in_ledger(world.ledger.revoke, name)
    here.runs.let_go(name, "revoked by the operator")  # it cannot come back in this round's time
    world.fleet.expel(
        name, Refusal(Code.REVOKED, f"The client {name!r} was revoked by the operator.")
    )
    world.live.changed("clients")
    log.warning("%s revoked", name)
    return _acted(await _one(here, name), words, changed=changed)


@router.post("/{name}/note")
async def note_client(here: Here, principal: Operator, name: str, wish: Note) -> ClientActed:
    """Keep a note about a client; an empty one takes it away."""
    before = await _one(here, name)
    await here.audit(principal, "client.note", name, {"note": wish.note})
    await here.world.in_ledger(here.world.ledger.set_note, name, wish.note)
    after = await _one(here, name)
    return _acted(after, f"{name} has another note.", changed=after.note != before.note)


@router.post("/{name}/labels")
async def label_client(here: Here, principal: Operator, name: str, wish: Labels) -> ClientActed:
    """Give a client labels, or take them away; those of its device stay beside them."""
    before = await _one(here, name)
    await here.audit(principal, "client.label", name, {"labels": wish.labels})
    await here.world.in_ledger(here.world.ledger.set_labels, name, wish.labels)
    after = await _one(here, name)
    return _acted(after, f"{name} has other labels.", changed=after.labels != before.labels)


@router.post("/{name}/{hold}")
async def hold_client(
    here: Here,
    principal: Operator,
    *,
    name: str,
    hold: Hold,
    why: Annotated[Why | None, Body()] = None,
    preview: Preview = False,
) -> ClientActed:
    """Put a client in quarantine, drain it, or release it; at once, and across restarts."""
    world, reason = here.world, (why or Why()).reason
    before = await _one(here, name)
    wanted = None if hold is Hold.RELEASE else sessions.Hold(hold)
    words = hold_words(before, wanted)
    if preview:
        return _acted(before, words, changed=False)
    await here.audit(principal, f"client.{hold}", name, {"reason": reason} if reason else {})
    changed = await world.in_ledger(world.ledger.set_hold, name, wanted, reason)
    if wanted is None:
        world.fleet.release(name)
    else:
        world.fleet.hold(name, wanted)
    if wanted is sessions.Hold.QUARANTINE:
        here.runs.let_go(name, reason or "put in quarantine by the operator")
    log.warning("%s: %s%s", name, hold, f": {reason}" if reason else "")
    return _acted(await _one(here, name), words, changed=changed)


def _acted(client: ClientView, words: str, *, changed: bool) -> ClientActed:
    return ClientActed(**client.model_dump(), consequence=words, changed=changed)
