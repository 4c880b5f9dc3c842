"""What the routes about operators take and give."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from fedloom.server.access.passwords import MAX_LENGTH
from fedloom.server.ledger.accounts import Scope

MAX_TTL_S = 10 * 366 * 24 * 3600.0

Password = Annotated[str, Field(max_length=MAX_LENGTH, repr=False)]
Label = Annotated[str, Field(max_length=64)]


Rank = Literal[Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN]
"""What a person may have."""


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Me(BaseModel):
    """Who asks."""

    name: str
    scope: Scope
    how: Annotated[str, Field(description="socket, session, token or oidc")]


class OwnPassword(_In):
    """A change of one's own password."""

    old: Password
    new: Password


class NewPassword(_In):
    """A user's next password."""

    password: Password


class NewScope(_In):
    """What a user may do from now on."""

    scope: Rank


class NewUser(_In):
    """A user to add."""

    name: Label
    scope: Rank
    password: Password


class UserView(BaseModel):
    """A user."""

    name: str
    scope: Scope
    created_at: float
    seen_at: Annotated[float | None, Field(description="last login")]


class UserList(BaseModel):
    """Users by name."""

    users: list[UserView]


class NewApiToken(_In):
    """A wish for an API token."""

    name: Annotated[Label, Field(description="whose it is: what the audit trail calls its bearer")]
    scope: Scope
    ttl_s: Annotated[
        float | None,
        Field(gt=0, le=MAX_TTL_S, allow_inf_nan=False, description="seconds; null for no end"),
    ] = 90 * 24 * 3600.0


class IssuedApiToken(BaseModel):
    """An API token, shown this once."""

    id: str
    name: str
    scope: Scope
    made_by: str
    created_at: float
    expires_at: float | None
    token: Annotated[str, Field(description="what a program sends; the server keeps its hash")]


class ApiTokenStatus(StrEnum):
    """What an API token is still good for."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiTokenView(BaseModel):
    """An API token, without its secret."""

    id: str
    name: str
    scope: Scope
    status: ApiTokenStatus
    made_by: str
    created_at: float
    expires_at: float | None
    used_at: float | None
    revoked_at: float | None

    @classmethod
    def of(cls, row: dict[str, Any], now: float) -> Self:
        """A row of the ledger as it stands at `now`."""
        expired = row["expires_at"] is not None and row["expires_at"] <= now
        status = ApiTokenStatus.EXPIRED if expired else ApiTokenStatus.ACTIVE
        return cls(**row, status=ApiTokenStatus.REVOKED if row["revoked_at"] else status)


class ApiTokenList(BaseModel):
    """API tokens, newest first."""

    api_tokens: list[ApiTokenView]


class NewLink(_In):
    """A wish for a login link."""

    scope: Rank = Scope.ADMIN


class LoginLink(BaseModel):
    """A link that logs in once."""

    url: Annotated[str, Field(description="good once and for two minutes")]
    scope: Scope
    expires_at: float
