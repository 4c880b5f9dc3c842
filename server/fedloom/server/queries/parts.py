"""What every route needs: the server's parts, and errors that say which status they are."""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from fedloom.protocol.errors import FedloomError, UsageError, printable
from fedloom.server.access.gate import Gate
from fedloom.server.access.principal import Principal
from fedloom.server.context import World
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.views import Acted, ErrorReply
from fedloom.server.rounds.manager import Runs
from fedloom.server.storage.model_norms import Inspector

FAULTS: dict[int | str, dict[str, object]] = {
    401: {"model": ErrorReply, "description": "Nobody has proved who they are."},
    403: {"model": ErrorReply, "description": "They may not."},
    404: {"model": ErrorReply, "description": "There is no such thing."},
    409: {"model": ErrorReply, "description": "It does not fit the state of things."},
    422: {"model": ErrorReply, "description": "The request is not what it must be."},
}

_DIGEST_PREFIX = re.compile(r"[0-9a-f]{4,64}")


_begun: ContextVar[tuple[Principal, str, str] | None] = ContextVar("_begun", default=None)
"""What this request has written into the trail last."""


class NotFoundError(UsageError):
    """There is no such thing."""


class ConflictError(UsageError):
    """It does not fit the state of things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the routes work on.

    Attributes:
        fleet: host:port where enrolled clients connect.
        enrolment: host:port where tokens are used.
        gate: lets operators in.
        console: where browsers reach the console; empty where it does not listen.
        steering: actions with a name of their own that are being done, by that name.
        inspector: measures models.
    """

    world: World
    runs: Runs
    authority: Authority | None
    fleet: str
    enrolment: str
    gate: Gate
    console: str = ""
    inspector: Inspector = field(default_factory=Inspector)
    started_at: float = field(default_factory=time.time)
    steering: dict[str, asyncio.Future[Acted]] = field(default_factory=dict)

    async def audit(
        self,
        principal: Principal,
        action: str,
        subject: str,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Write into the audit trail what somebody is about to do; call it before it is done.

        Args:
            principal: who.
            action: `thing.verb`, as `run.pause`.
            subject: what it is done to: an id or a name.
            detail: its arguments, without secrets; whatever JSON holds.
        """
        await self.world.audit(principal.name, principal.how, action, subject, detail or {})
        _begun.set((principal, action, subject))

    async def run_id(self, reference: str) -> str:
        """The one run whose id is, or begins with, `reference`.

        Raises:
            NotFoundError: there is none.
            UsageError: there are several.
        """
        ledger = self.world.ledger
        if await self.world.in_reader(ledger.run, reference) is not None:
            return reference
        rows = await self.world.in_reader(ledger.list_runs)
        return _only(reference, [r["id"] for r in rows if r["id"].startswith(reference)], "run")

    async def digest(self, reference: str) -> str:
        """The one stored model whose digest is, or begins with, `reference`.

        Raises:
            NotFoundError: there is none.
            UsageError: there are several, or it is no digest.
        """
        if not _DIGEST_PREFIX.fullmatch(reference):
            raise UsageError(
                f"Expected a model's digest, or its first 4 digits or more, got {reference[:80]!r}."
            )
        found = await self.world.in_disk(self.world.models.find, reference)
        return _only(reference, found, "model")

    async def known_digest(self, reference: str) -> str:
        """As `digest`, also of a model that was pruned."""
        known = await self.world.in_reader(self.world.ledger.find_models, reference)
        return known[0] if len(known) == 1 else await self.digest(reference)

    async def hold(self, digest: str) -> None:
        """Keep a model's file from being pruned while a row that needs it is written.

        Raises:
            NotFoundError: it was pruned already.
        """
        if not await self.world.in_disk(self.world.models.hold, digest):
            raise NotFoundError(f"Expected a stored model, got {digest[:12]}, which was pruned.")


def _only(reference: str, found: list[str], what: str) -> str:
    if not found:
        raise NotFoundError(
            f"Expected a {what} of this server, got {reference[:80]!r}: see `fedloom {what} list`."
        )
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:5]) + (", ..." if len(found) > 5 else "")
        raise UsageError(
            f"Expected one {what} that begins with {reference!r}, got {len(found)}: {shown}."
        )
    return found[0]


async def not_done(request: Request, error: Exception) -> None:
    """Write into the trail that what a request was about to do was not done."""
    begun = _begun.get()
    _begun.set(None)
    if begun is not None:
        principal, action, subject = begun
        told = str(error) if isinstance(error, FedloomError) else type(error).__name__
        detail = {"error": printable(told)}
        world = _parts(request).world
        with suppress(Exception):  # of the trail's own: the request is answered all the same
            await world.audit(principal.name, principal.how, f"{action}.failed", subject, detail)


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


Here = Annotated[Parts, Depends(_parts)]
"""The server's parts, as a route asks for them."""

Preview = Annotated[
    bool, Query(description="do nothing, and say what it would do in `consequence`")
]
"""Asks an action for its consequence only."""
