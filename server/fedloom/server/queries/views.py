"""What the HTTP API takes and gives: its contract, and the source of its OpenAPI description.

Times are seconds since the epoch, UTC; null where something has not happened. A list comes in an
object under its own name, so that more can stand beside it later.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedloom.server.queries.round_views import RoundView

MAX_TTL_S = 366 * 24 * 3600.0

PROSE = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$"
"""What people write: of control characters only tabs and line breaks. Others steer the terminal
that shows them, and PostgreSQL holds no NUL."""

MAX_NUMBER = 2**53
"""Of ids and rounds: what JSON carries exactly; databases refuse numbers past 2^63 rudely."""


class _In(BaseModel):
    """A request: an unknown field is a mistake, not a wish."""

    model_config = ConfigDict(extra="forbid")


class Fault(BaseModel):
    """Why a request was not done: what was expected, what came, what to do."""

    message: str
    kind: Annotated[
        str,
        Field(
            description="usage, not_found, conflict, denied, refused, integrity, unavailable or "
            "internal"
        ),
    ]
    code: Annotated[str | None, Field(description="the refusal's code, where kind is refused")]


class ErrorReply(BaseModel):
    """The body of every answer that is not a success."""

    error: Fault


class ServerView(BaseModel):
    """A running server."""

    federation: str
    version: str
    started_at: float
    uptime_s: float
    clients_online: int
    runs_active: int
    fleet: Annotated[str, Field(description="host:port for enrolled clients")]
    enrolment: Annotated[str, Field(description="host:port for devices with a token")]
    console: Annotated[str, Field(description="URL of the web console; empty without one")] = ""
    names: Annotated[list[str], Field(description="names in the server's certificate")]
    tls: bool
    root_sha256: Annotated[str | None, Field(description="of the root certificate's DER, hex")]
    max_model_bytes: int


class NewToken(_In):
    """A wish for a token."""

    client: Annotated[str | None, Field(description="null for a generated, readable name")] = None
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S, description="seconds until it expires")] = (
        24 * 3600.0
    )


class IssuedToken(BaseModel):
    """A token, shown this once."""

    id: str
    client: str
    token: Annotated[str, Field(description="what the device needs; the server keeps its hash")]
    created_at: float
    expires_at: float
    enrolment: Annotated[str, Field(description="host:port where it is used")]


class TokenStatus(StrEnum):
    """What a token is still good for."""

    UNUSED = "unused"
    USED = "used"
    EXPIRED = "expired"


class TokenView(BaseModel):
    """A token, without its secret."""

    id: str
    client: str
    status: TokenStatus
    created_at: float
    expires_at: float
    used_at: float | None


class TokenList(BaseModel):
    """Tokens, newest first."""

    tokens: list[TokenView]
    total: Annotated[int, Field(description="that there ever were")]
    more: Annotated[str | None, Field(description="`before` of the next page; null at the end")]


class StoredModel(BaseModel):
    """A model file in the store."""

    digest: Annotated[str, Field(description="SHA-256 of the file, hex")]
    size_bytes: int
    num_tensors: int
    num_values: int


class ModelView(BaseModel):
    """A model that a run began with (round 0) or committed."""

    digest: str
    run: str
    round: int
    size_bytes: int
    created_at: float
    pruned: Annotated[int | None, Field(description="null while its file is kept")] = None


class ModelList(BaseModel):
    """Models, oldest first."""

    models: list[ModelView]
    more: Annotated[
        str | None, Field(description="`before` of the page of older ones; null at the end")
    ] = None


class Promote(_In):
    """A wish to promote a model."""

    run: Annotated[
        str | None, Field(description="null: the latest run that began with it or committed it")
    ] = None
    note: Annotated[str, Field(max_length=500, pattern=PROSE, description="for people")] = ""


class PromotionView(BaseModel):
    """A model that was said to be the one to use."""

    id: Annotated[int, Field(description="rises with every promotion")]
    at: float
    run: str
    round: int
    digest: str
    note: str


class Promoted(BaseModel):
    """What promoting a model did, or would do."""

    promotion: Annotated[PromotionView | None, Field(description="null in a preview")]
    changed: Annotated[bool, Field(description="false where it was promoted already")]
    consequence: str


class PromotionList(BaseModel):
    """Promotions, newest first."""

    promotions: list[PromotionView]
    more: Annotated[int | None, Field(description="`before` of the next page; null at the end")]


class RollBackTo(_In):
    """A wish to roll a run back."""

    round: Annotated[
        int,
        Field(ge=0, le=MAX_NUMBER, description="committed training round; 0: the beginning"),
    ]


class NewRun(_In):
    """A run to start."""

    spec: Annotated[dict[str, Any], Field(description="as in run.toml")]
    model: Annotated[str, Field(description="digest of a stored model, or a unique prefix")]


class Described(_In):
    """A specification to look at."""

    spec: Annotated[dict[str, Any], Field(description="as in run.toml")]


class Description(BaseModel):
    """What a run would be."""

    spec: Annotated[dict[str, Any], Field(description="with every default")]
    privacy: Annotated[
        dict[str, Any] | None, Field(description="what it would claim; null without [privacy]")
    ]


class RunView(BaseModel):
    """A run, in short."""

    id: str
    name: str
    state: Annotated[str, Field(description="running, paused, finished, stopped or failed")]
    reason: str
    created_at: float
    ended_at: float | None
    model: Annotated[str, Field(description="digest of the current model")]
    rounds_total: Annotated[int, Field(description="training rounds wanted")]
    rounds_committed: Annotated[int, Field(description="training rounds done")]
    privacy: Annotated[
        dict[str, Any] | None,
        Field(description="what the run claims, in full; null without differential privacy"),
    ] = None


class Acted(RunView):
    """A run after an action on it, or before one that was only previewed."""

    changed: Annotated[bool, Field(description="false in a preview, or where it was so already")]
    consequence: str


class RunList(BaseModel):
    """Runs, oldest first."""

    runs: list[RunView]


class MemberProgress(BaseModel):
    """How far a member says its training is."""

    fraction: Annotated[float, Field(ge=0, le=1)]
    loss: Annotated[float | None, Field(description="null where it said none")]


class LiveRound(BaseModel):
    """The round that is open right now, as its engine sees it."""

    number: int
    kind: str
    state: str
    paused: bool
    clients: Annotated[dict[str, int], Field(description="how many members are in each phase")]
    members: Annotated[dict[str, str], Field(description="phase of each member of the cohort")]
    progress: Annotated[
        dict[str, MemberProgress], Field(description="of members that are training and say it")
    ] = {}
    training: Annotated[
        float | None, Field(description="mean of those fractions; null where nobody says it")
    ] = None
    available: int
    accepted: int
    goal: int
    quorum: int
    concurrency: Annotated[
        int | None, Field(description="of a buffer: clients at work at a time")
    ] = None
    deadline_left_s: float | None


class LiveView(BaseModel):
    """What happens in an active run right now."""

    clients_available: int
    round: LiveRound | None = None


class RunDetail(RunView):
    """A run with all its rounds."""

    spec: dict[str, Any]
    rounds: Annotated[list[RoundView], Field(description="the latest, oldest first")]
    rounds_earlier: Annotated[
        int, Field(description="how many there are before those: GET /v1/runs/RUN/rounds has them")
    ] = 0
    live: Annotated[LiveView | None, Field(description="null once the run has ended")]


class RefusalView(BaseModel):
    """Something a client sent that was turned away."""

    at: float
    client: str
    run: str
    round: int
    code: str
    message: str
    detail: Annotated[str, Field(description="for the operator alone")]


class RefusalList(BaseModel):
    """Refusals, newest first."""

    refusals: list[RefusalView]


class Action(StrEnum):
    """What an operator can do to a run or to its open round."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CLOSE = "close"
    ABORT = "abort"
    EXTEND = "extend"
    RETRY = "retry"
    GOAL = "goal"


class ActionArguments(_In):
    """What some actions need."""

    reason: Annotated[str, Field(max_length=500, pattern=PROSE, description="for abort")] = ""
    seconds: Annotated[
        float | None,
        Field(
            gt=0, le=MAX_TTL_S, allow_inf_nan=False, description="for extend: added to the deadline"
        ),
    ] = None
    goal: Annotated[
        int | None, Field(ge=1, le=MAX_NUMBER, description="for goal: updates to close at")
    ] = None
    quorum: Annotated[
        int | None,
        Field(ge=1, le=MAX_NUMBER, description="for goal: fewest updates; as it was if null"),
    ] = None
    round: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_NUMBER,
            description="do it only if this round is the open one: so it is done once",
        ),
    ] = None
    request: Annotated[
        str | None,
        Field(
            min_length=8,
            max_length=100,
            description="any text of one's own: a request that was done is not done again for a "
            "day, and answered as it was",
        ),
    ] = None
