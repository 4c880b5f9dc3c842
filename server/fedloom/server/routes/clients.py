"""Routes of clients: lists, tasks, and actions such as drain and revoke."""

import logging
from typing import Annotated

from fastapi import APIRouter, Body, Query

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.server.access.scopes import Admin, Operator, Viewer
from fedloom.server.actions.consequences import hold_words, revoke_words
from fedloom.server.fleet import sessions
from fedloom.server.http.dependencies import FAULTS, Context, Preview, StudyFilter
from fedloom.server.queries import client_views as views
from fedloom.server.queries import clients as queries
from fedloom.server.queries.clients import one_client
from fedloom.server.studies import check_study

log = logging.getLogger(__name__)

router = APIRouter(prefix="/clients", tags=["clients"], responses=FAULTS)
versions = APIRouter(tags=["clients"], responses=FAULTS)


@router.get("")
async def list_clients(
    context: Context,
    _: Viewer,
    *,
    q: Annotated[str, Query(max_length=120, description="part of a name, note or label")] = "",
    state: views.ClientState | None = None,
    version: Annotated[str, Query(max_length=120, description="of the SDK, or its start")] = "",
    label: Annotated[str, Query(max_length=250, description="name, or name=value")] = "",
    study: StudyFilter = "",
    after: Annotated[str, Query(max_length=120, description="last client of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> views.ClientList:
    """All clients that ever enrolled, by name, filtered and page by page."""
    return await queries.clients_page(
        context,
        q=q,
        state=state,
        version=version,
        label=label,
        study=study,
        after=after,
        limit=limit,
    )


@versions.get("/client-versions")
async def list_versions(context: Context, _: Viewer) -> views.Versions:
    """Number of clients per version of the SDK, as reported when they last connected."""
    return await queries.versions(context)


@versions.get("/client-shares")
async def list_shares(
    context: Context,
    _: Viewer,
    label: Annotated[str, Query(min_length=1, max_length=120, description="name of a label")],
    run: Annotated[str, Query(max_length=120, description="whose rounds; empty: of all")] = "",
) -> views.LabelShares:
    """How often rounds asked clients, by the value of a label."""
    return await queries.label_shares(context, label, run)


@router.get("/{name}")
async def get_client(context: Context, _: Viewer, name: str) -> views.ClientView:
    """A client."""
    return await one_client(context, name)


@router.get("/{name}/parts")
async def list_parts(
    context: Context,
    _: Viewer,
    name: str,
    before: Annotated[
        float, Query(ge=0, le=1e12, description="last `offered_at` of the page before")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> views.PartList:
    """A client's tasks in rounds, newest first."""
    return await queries.parts_page(context, name, before=before, limit=limit)


# ---- actions -------------------------------------------------------------------------------------


@router.post("/{name}/revoke")
async def revoke_client(
    context: Context, principal: Operator, name: str, preview: Preview = False
) -> views.ClientActed:
    """Revoke a client and all its certificates, and end its connection at once."""
    before = await one_client(context, name)
    changed = before.status != "revoked"
    words = revoke_words(name, changed=changed)
    if preview:
        return _acted(before, words, changed=False)
    await context.audit(principal, "client.revoke", name)
    await context.in_ledger(context.ledger.revoke, name)
    context.runs.let_go(name, "revoked by the operator")  # without waiting for it to reconnect
    context.fleet.expel(
        name, Refusal(Code.REVOKED, f"The client {name!r} was revoked by the operator.")
    )
    context.live.changed("clients")
    log.warning("%s revoked", name)
    return _acted(await one_client(context, name), words, changed=changed)


@router.post("/{name}/note")
async def note_client(
    context: Context, principal: Operator, name: str, wish: views.Note
) -> views.ClientActed:
    """Set the note about a client; an empty one removes it."""
    before = await one_client(context, name)
    await context.audit(principal, "client.note", name, {"note": wish.note})
    await context.in_ledger(context.ledger.set_note, name, wish.note)
    context.live.changed("clients")
    after = await one_client(context, name)
    return _acted(after, f"The note about {name} was saved.", changed=after.note != before.note)


@router.post("/{name}/labels")
async def label_client(
    context: Context, principal: Operator, name: str, wish: views.Labels
) -> views.ClientActed:
    """Set or remove a client's labels; labels set by its device do not change."""
    before = await one_client(context, name)
    await context.audit(principal, "client.label", name, {"labels": wish.labels})
    await context.in_ledger(context.ledger.set_labels, name, wish.labels)
    await context.runs.apply_budgets()
    context.live.changed("clients")
    after = await one_client(context, name)
    changed = after.labels != before.labels
    return _acted(after, f"The labels of {name} were saved.", changed=changed)


@router.post("/{name}/study")
async def move_client(
    context: Context, principal: Admin, name: str, wish: views.NewStudy
) -> views.ClientActed:
    """Move a client to a study: only runs of that study draw it. A task under way goes on.

    Its recent failures, of runs of another study, no longer count.
    """
    check_study(wish.study)
    before = await one_client(context, name)
    await context.audit(principal, "client.study", name, {"study": wish.study})
    await context.in_ledger(context.ledger.set_study, name, wish.study)
    changed = wish.study != (before.study or "")
    context.fleet.assign(name, wish.study)
    if changed:
        await context.in_ledger(context.ledger.clear_failures, name)
        context.runs.cool_offs.release(name)
        context.live.changed("clients")
    after = await one_client(context, name)
    where = f"the study {wish.study}" if wish.study else "no study"
    return _acted(after, f"{name} is in {where}.", changed=changed)


@router.post("/{name}/devices")
async def register_devices(
    context: Context, principal: Admin, name: str, wish: views.SiteDevices
) -> views.ClientActed:
    """Register a site for another number of devices; a larger sum is refused from now on."""
    before = await one_client(context, name)
    if not before.devices:
        raise UsageError(
            f"Expected a site, got the device {name}: enrol it anew by a token with --devices."
        )
    await context.audit(principal, "client.devices", name, {"devices": wish.devices})
    await context.in_ledger(context.ledger.set_devices, name, wish.devices)
    if before.status != "revoked":
        context.fleet.register_site(name, wish.devices)
    changed = wish.devices != before.devices
    after = await one_client(context, name)
    return _acted(after, f"{name} is registered for {wish.devices} devices.", changed=changed)


@router.post("/{name}/{hold}")
async def hold_client(
    context: Context,
    principal: Operator,
    *,
    name: str,
    hold: views.Hold,
    why: Annotated[views.Why | None, Body()] = None,
    preview: Preview = False,
) -> views.ClientActed:
    """Put a client in quarantine, drain it, or release it; a hold survives restarts.

    A release also ends a cooling-off, and the count of recent failures starts again.
    """
    reason = (why or views.Why()).reason
    before = await one_client(context, name)
    wanted = None if hold is views.Hold.RELEASE else sessions.Hold(hold)
    words = hold_words(before, wanted)
    if preview:
        return _acted(before, words, changed=False)
    await context.audit(principal, f"client.{hold}", name, {"reason": reason} if reason else {})
    changed = await context.in_ledger(context.ledger.set_hold, name, wanted, reason)
    if wanted is None:
        changed |= before.failures > 0
        await context.in_ledger(context.ledger.clear_failures, name)
        context.runs.cool_offs.release(name)
        context.fleet.release(name)
        context.live.changed("clients")
    else:
        context.fleet.hold(name, wanted)
    if wanted is sessions.Hold.QUARANTINE:
        context.runs.let_go(name, reason or "put in quarantine by the operator")
    log.warning("%s: %s%s", name, hold, f": {reason}" if reason else "")
    return _acted(await one_client(context, name), words, changed=changed)


def _acted(client: views.ClientView, words: str, *, changed: bool) -> views.ClientActed:
    return views.ClientActed(**client.model_dump(), consequence=words, changed=changed)
