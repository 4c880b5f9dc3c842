"""Scopes: how much a user, a session or an API token may do, as the ledger stores it.

Invariant: scopes are nested. A viewer reads, an operator also controls runs and clients, an
administrator also manages users, tokens and enrolment.
"""

from enum import StrEnum


class Scope(StrEnum):
    """A permission level. `metrics` is the least: a program with it reads `/metrics` alone."""

    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Scope") -> bool:
        """Whether this scope includes `needed`.

        >>> Scope.OPERATOR.covers(Scope.VIEWER), Scope.OPERATOR.covers(Scope.ADMIN)
        (True, False)
        """
        return _RANK[self] >= _RANK[needed]


_RANK = {scope: rank for rank, scope in enumerate(Scope)}
