"""The principal of a request: its name, its scope and how it authenticated."""

from dataclasses import dataclass

from fedloom.server.ledger.access.accounts import Scope

LOCAL_USER = "fedloom.local_user"
"""Key in an ASGI scope: the name of the local user behind the Unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated sender of a request.

    Attributes:
        name: of the local user, of the account, or of the API token.
        scope: what it may do.
        how: `socket`, `session`, `token` or `oidc`.
        studies: that it is limited to; None for no limit.
        csrf: token that a form or an htmx request must send back, for a session by cookie.
    """

    name: str
    scope: Scope
    how: str
    csrf: str = ""
    studies: frozenset[str] | None = None

    @property
    def audience(self) -> str:
        """Principals of one audience see the same answers."""
        limit = "" if self.studies is None else "/".join(["", *sorted(self.studies)])
        return f"{self.scope}{limit}"
