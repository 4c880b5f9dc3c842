"""Which scope a route needs, and who asks.

A route says it in its signature, as `principal: Operator`; the tests make their table of who is
refused from that. A request over the Unix socket comes from the local user, who is an
administrator: the socket's mode lets in nobody else (`fedloom.server.control`).
"""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from fedloom.protocol.errors import FedloomError
from fedloom.server.access.principal import Principal, Scope
from fedloom.server.control import LOCAL_USER

__all__ = ["Admin", "Operator", "Principal", "Scope", "Viewer", "declared_scope", "needs"]


class UnauthenticatedError(FedloomError):
    """Nobody has proved who they are."""


class ForbiddenError(FedloomError):
    """Somebody asks for more than they may."""


async def principal_of(request: Request) -> Principal:
    """Who asks.

    Raises:
        UnauthenticatedError: nobody has proved who they are.
    """
    name = request.scope.get(LOCAL_USER)
    if name is None:
        raise UnauthenticatedError("Expected somebody who is logged in, got nobody.")
    return Principal(name=name, scope=Scope.ADMIN, how="socket")


class needs:  # noqa: N801 - read as a word: Depends(needs(Scope.VIEWER))
    """A dependency that lets nobody through who has less than `scope`.

    Args:
        scope: the least that is enough.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Principal:
        """Who asks.

        Raises:
            UnauthenticatedError: nobody has proved who they are.
            ForbiddenError: they may not.
        """
        principal = await principal_of(request)
        if not principal.scope.covers(self.scope):
            raise ForbiddenError(
                f"Expected the scope {self.scope}, but {principal.name} has {principal.scope}: "
                "ask an administrator."
            )
        return principal


Viewer = Annotated[Principal, Depends(needs(Scope.VIEWER))]
Operator = Annotated[Principal, Depends(needs(Scope.OPERATOR))]
Admin = Annotated[Principal, Depends(needs(Scope.ADMIN))]


def declared_scope(dependant: Dependant) -> Scope | None:
    """The scope that a route declares, the highest where it declares several; None without one."""
    found = sorted(_scopes(dependant), key=[*Scope].index)
    return found[-1] if found else None


def _scopes(dependant: Dependant) -> Iterator[Scope]:
    if isinstance(dependant.call, needs):
        yield dependant.call.scope
    for inner in dependant.dependencies:
        yield from _scopes(inner)
