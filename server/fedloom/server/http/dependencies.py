"""Dependencies in the signatures of routes and pages: the context, a preview, error replies."""

from typing import Annotated

from fastapi import Depends, Query, Request

from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.views import ErrorReply

FAULTS: dict[int | str, dict[str, object]] = {
    401: {"model": ErrorReply, "description": "The request has no valid credential."},
    403: {"model": ErrorReply, "description": "The scope of the credential is too small."},
    404: {"model": ErrorReply, "description": "No object has this name."},
    409: {"model": ErrorReply, "description": "The request does not fit the current state."},
    422: {"model": ErrorReply, "description": "The request is malformed."},
}


def context_of(request: Request) -> ConsoleContext:
    """The context of the application that serves a request."""
    context: ConsoleContext = request.app.state.context
    return context


Context = Annotated[ConsoleContext, Depends(context_of)]
"""The context, as a dependency of a route or page."""

StudyFilter = Annotated[str, Query(max_length=40, description="a study; `-` for those of none")]
"""Lists only what is of a study."""

Preview = Annotated[bool, Query(description="do nothing, and describe the effect in `consequence`")]
"""Requests only the description of an action."""
