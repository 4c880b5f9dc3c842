"""One action on several clients: each as its own action, with its own entry in the audit trail."""

import asyncio
import logging
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.server.access.errors import HiddenError
from fedloom.server.access.principal import Principal
from fedloom.server.access.scopes import Operator
from fedloom.server.access.studies import is_open
from fedloom.server.http.dependencies import FAULTS, Context, Preview
from fedloom.server.queries import client_views as views
from fedloom.server.queries.clients import matching
from fedloom.server.queries.views import PROSE
from fedloom.server.routes.clients import hold_client, label_client, revoke_client

log = logging.getLogger(__name__)

router = APIRouter(tags=["clients"], responses=FAULTS)

MOST = 1000
"""Clients of one request: more would keep the audit trail busy for seconds."""

REVOKE = "routes.clients.revoke_client"
"""The route that the action revoke needs too."""


class GroupAction(StrEnum):
    """What can be done to several clients."""

    QUARANTINE = "quarantine"
    DRAIN = "drain"
    RELEASE = "release"
    LABEL = "label"
    REVOKE = "revoke"


class Matching(BaseModel):
    """Clients by the filters of the list of clients."""

    model_config = ConfigDict(extra="forbid")

    q: Annotated[str, Field(max_length=120)] = ""
    state: views.ClientState | None = None
    version: Annotated[str, Field(max_length=120)] = ""
    label: Annotated[str, Field(max_length=250)] = ""
    study: Annotated[str, Field(max_length=40)] = ""


class GroupWish(BaseModel):
    """An action on several clients."""

    model_config = ConfigDict(extra="forbid")

    action: GroupAction
    clients: Annotated[
        list[Annotated[str, Field(max_length=120)]],
        Field(max_length=MOST, description="names; empty in a preview with `match`"),
    ] = []
    match: Annotated[
        Matching | None,
        Field(description="in a preview: all that match; its answer has their names"),
    ] = None
    reason: Annotated[str, Field(max_length=500, pattern=PROSE)] = ""
    labels: Annotated[
        dict[views.LabelName, views.ShortText | None],
        Field(max_length=64, description="of the action label; null removes one"),
    ] = {}


class GroupFailure(BaseModel):
    """A client on which the action failed."""

    client: str
    message: str


class GroupActed(BaseModel):
    """What an action on several clients did, or would do."""

    changed: Annotated[list[str], Field(description="clients it changed; in a preview: none")]
    unchanged: Annotated[list[str], Field(description="clients that were so already")]
    failed: list[GroupFailure]
    clients: Annotated[list[str], Field(description="all of them, to repeat after a preview")]
    consequence: str


@router.post("/client-groups")
async def act_on_clients(
    context: Context, principal: Operator, wish: GroupWish, preview: Preview = False
) -> GroupActed:
    """Quarantine, drain, release, label or revoke several clients.

    Each is an action of its own: one that fails does not keep the others from theirs.
    """
    if wish.match is not None and not preview:
        raise UsageError("Expected names in `clients`, as the preview of `match` gives them.")
    if wish.action is GroupAction.REVOKE and not is_open(principal, REVOKE):
        raise HiddenError("Users of a study cannot revoke clients: ask an administrator.")
    if wish.action is GroupAction.LABEL and not wish.labels:
        raise UsageError("Expected `labels` to set or remove, got none.")
    names = list(dict.fromkeys(wish.clients))
    if wish.match is not None:
        names = await matching(context, **wish.match.model_dump())
    if not 1 <= len(names) <= MOST:
        raise UsageError(
            f"Expected 1 to {MOST} clients at once, got {len(names)}: narrow the filter."
        )
    if preview:
        return await _preview(context, wish, names)
    found = GroupActed(changed=[], unchanged=[], failed=[], clients=names, consequence="")
    for name in names:
        # In a context of its own: a failure is recorded for this client's action alone.
        acted = await asyncio.create_task(_tried(context, principal, wish, name))
        if isinstance(acted, GroupFailure):
            found.failed.append(acted)
        else:
            (found.changed if acted.changed else found.unchanged).append(name)
    found.consequence = _outcome(wish.action, found)
    return found


async def _preview(context: Context, wish: GroupWish, names: list[str]) -> GroupActed:
    """What the action would do: to whom it changes nothing, and who does not exist."""
    values, read = context.ledger.client_values, context.in_reader
    seen = set(await matching(context))
    status, hold = await read(values, "status"), await read(values, "hold")
    failures = await read(values, "failures")

    def is_so(name: str) -> bool:
        match wish.action:
            case GroupAction.QUARANTINE | GroupAction.DRAIN:
                return bool(hold[name] == wish.action)
            case GroupAction.RELEASE:
                return not hold[name] and not failures[name]
            case GroupAction.REVOKE:
                return bool(status[name] == "revoked")
        return False

    unchanged = [name for name in names if name in seen and is_so(name)]
    failed = [
        GroupFailure(client=name, message=f"There is no client {name!r}.")
        for name in names
        if name not in seen
    ]
    words = _words(wish, names)
    if unchanged:
        words += f" Nothing changes for {len(unchanged)} of them."
    if failed:
        words += f" {len(failed)} of them {'does' if len(failed) == 1 else 'do'} not exist."
    return GroupActed(
        changed=[], unchanged=unchanged, failed=failed, clients=names, consequence=words
    )


async def _tried(
    context: Context, principal: Principal, wish: GroupWish, name: str
) -> views.ClientActed | GroupFailure:
    """Act on one client; a failure is recorded in the audit trail and returned."""
    try:
        return await _act(context, principal, wish, name)
    except Exception as error:
        await context.audit_failure(error)
        if isinstance(error, FedloomError):
            return GroupFailure(client=name, message=str(error))
        log.exception("%s: %s failed", name, wish.action)
        message = f"Internal error {type(error).__name__}: see the server's log."
        return GroupFailure(client=name, message=message)


async def _act(
    context: Context, principal: Principal, wish: GroupWish, name: str
) -> views.ClientActed:
    if wish.action is GroupAction.REVOKE:
        return await revoke_client(context, principal, name)
    if wish.action is GroupAction.LABEL:
        return await label_client(context, principal, name, views.Labels(labels=wish.labels))
    hold, why = views.Hold(wish.action), views.Why(reason=wish.reason)
    return await hold_client(context, principal, name=name, hold=hold, why=why)


_EFFECTS = {
    GroupAction.QUARANTINE: "get no offers and their updates are refused until they are released. "
    "Their tasks are cancelled; their earlier updates still count.",
    GroupAction.DRAIN: "finish their tasks, which count, and get no further offers.",
    GroupAction.RELEASE: "get offers again when they are idle, and their updates count.",
    GroupAction.REVOKE: "lose their certificates and unused tokens, and their connections end at "
    "once. They need new tokens to connect again.",
}
_DONE = {
    GroupAction.QUARANTINE: "put in quarantine",
    GroupAction.DRAIN: "drained",
    GroupAction.RELEASE: "released",
    GroupAction.LABEL: "labelled",
    GroupAction.REVOKE: "revoked",
}


def _words(wish: GroupWish, names: list[str]) -> str:
    """What the action does to which clients."""
    who = f"{len(names)} client{'' if len(names) == 1 else 's'}"
    if wish.action is not GroupAction.LABEL:
        return f"{who} {_EFFECTS[wish.action]}"
    changes = ", ".join(
        f"{name} is removed" if not value else f"{name}={value}"
        for name, value in wish.labels.items()
    )
    return f"{who} get these labels: {changes}. Labels set by devices do not change."


def _outcome(action: GroupAction, found: GroupActed) -> str:
    """What the action did."""
    words = f"{len(found.changed)} {_DONE[action]}"
    if found.unchanged:
        words += f", {len(found.unchanged)} unchanged"
    if found.failed:
        words += f", {len(found.failed)} failed: "
        words += " ".join(f"{each.client}: {each.message}" for each in found.failed[:3])
    return words if words.endswith(".") else f"{words}."
