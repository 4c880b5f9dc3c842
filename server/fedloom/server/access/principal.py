"""Who asks: the name, the scope and the way in of a request.

Invariant: scopes are nested. A viewer sees, an operator also steers, an administrator also decides
who else may: each may do all that the one before may.
"""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """How much somebody may do; a program may also have the least, to read `/metrics` alone."""

    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Scope") -> bool:
        """Is this enough where `needed` is asked for?

        >>> Scope.OPERATOR.covers(Scope.VIEWER), Scope.OPERATOR.covers(Scope.ADMIN)
        (True, False)
        """
        return _RANK[self] >= _RANK[needed]


_RANK = {scope: rank for rank, scope in enumerate(Scope)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody who has proved who they are.

    Attributes:
        name: of the local user, of the account, or of the API token.
        scope: how much they may do.
        how: `socket`, `session`, `token` or `oidc`.
        csrf: what a form or an htmx request sends back, where a cookie proved who they are.
    """

    name: str
    scope: Scope
    how: str
    csrf: str = ""
