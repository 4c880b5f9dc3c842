"""Requests and answers of the routes of operators' access."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from fedloom.server.access.passwords import MAX_LENGTH
from fedloom.server.ledger.access.accounts import Scope

MAX_TTL_S = 10 * 366 * 24 * 3600.0

Password = Annotated[str, Field(max_length=MAX_LENGTH, repr=False)]
Label = Annotated[str, Field(max_length=64)]


Rank = Literal[Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN]
"""Scopes of people."""


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


Studies = Annotated[
    list[str] | None, Field(max_length=20, description="that it is limited to; null for no limit")
]


class Me(BaseModel):
    """The caller."""

    name: str
    scope: Scope
    how: Annotated[str, Field(description="socket, session, token or oidc")]
    studies: Studies = None


class OwnPassword(_In):
    """A change of the caller's password."""

    old: Password
    new: Password


class NewPassword(_In):
    """A user's new password."""

    password: Password


class NewScope(_In):
    """A user's new scope."""

    scope: Rank


class NewUser(_In):
    """A user to add."""

    name: Label
    scope: Rank
    password: Password
    studies: Studies = None


class UserView(BaseModel):
    """A user."""

    name: str
    scope: Scope
    studies: Studies = None
    created_at: float
    seen_at: Annotated[float | None, Field(description="last login")]


class UserList(BaseModel):
    """Users by name."""

    users: list[UserView]


class NewApiToken(_In):
    """An API token to create."""

    name: Annotated[Label, Field(description="name of its bearer in the audit trail")]
    scope: Scope
    ttl_s: Annotated[
        float | None,
        Field(gt=0, le=MAX_TTL_S, allow_inf_nan=False, description="seconds; null: no expiry"),
    ] = 90 * 24 * 3600.0
    studies: Studies = None


class IssuedApiToken(BaseModel):
    """An API token; its text is shown only once."""

    id: str
    name: str
    scope: Scope
    studies: Studies = None
    made_by: str
    created_at: float
    expires_at: float | None
    token: Annotated[str, Field(description="for the program; the server stores only its hash")]


class ApiTokenStatus(StrEnum):
    """Status of an API token."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiTokenView(BaseModel):
    """An API token, without its secret."""

    id: str
    name: str
    scope: Scope
    studies: Studies = None
    status: ApiTokenStatus
    made_by: str
    created_at: float
    expires_at: float | None
    used_at: float | None
    revoked_at: float | None

    @classmethod
    def of(cls, row: dict[str, Any], now: float) -> Self:
        """The view of a row of the ledger at `now`."""
        expired = row["expires_at"] is not None and row["expires_at"] <= now
        status = ApiTokenStatus.EXPIRED if expired else ApiTokenStatus.ACTIVE
        return cls(**row, status=ApiTokenStatus.REVOKED if row["revoked_at"] else status)


class ApiTokenList(BaseModel):
    """API tokens, newest first."""

    api_tokens: list[ApiTokenView]


class NewLink(_In):
    """A login link to create."""

    scope: Rank = Scope.ADMIN


class LoginLink(BaseModel):
    """A link that logs in once."""

    url: Annotated[str, Field(description="works once, within two minutes")]
    scope: Scope
    expires_at: float
