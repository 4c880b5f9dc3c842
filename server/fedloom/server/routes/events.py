"""The route of live events, as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from fedloom.protocol.errors import UnavailableError
from fedloom.server.access.scopes import Viewer
from fedloom.server.event_hub import MAX_OF_ONE, MAX_WATCHERS, Hub, Watcher
from fedloom.server.http.dependencies import FAULTS, Context

MEDIA_TYPE = "text/event-stream"

router = APIRouter(tags=["events"], responses=FAULTS)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
            "description": "Endless server-sent events.",
        }
    },
)
async def events(
    context: Context,
    principal: Viewer,
    topics: Annotated[
        str,
        Query(
            max_length=200,
            description="of round, run, clients, work, tokens, models, refusals, audit, log",
        ),
    ] = "",
) -> StreamingResponse:
    """Changes as they happen, at most twice per second; an event names what to read again.

    Without `topics`, all topics but `log`. Events are not replayed: read everything again after
    reconnecting.
    """
    hub, limited = context.live, principal.studies
    runs = context.runs

    def sees(topic: str, run: str) -> bool:
        """Whether a change is of a run of the principal's studies."""
        return topic in ("run", "round") and runs.study_of(run) in (limited or ())

    wanted = {topic for topic in topics.split(",") if topic}
    watcher = hub.watch(wanted, principal.name, None if limited is None else sees)
    if watcher is None:
        raise UnavailableError(
            f"At most {MAX_WATCHERS} event streams can be open, and {MAX_OF_ONE} of one user: "
            "close a page."
        )
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_until_gone(hub, watcher), media_type=MEDIA_TYPE, headers=headers)


async def _until_gone(hub: Hub, watcher: Watcher) -> AsyncIterator[bytes]:
    try:
        async for message in watcher:
            yield message
    finally:
        hub.leave(watcher)
