"""Requests and answers of the HTTP API, from which its OpenAPI description is generated.

Times are seconds since the epoch, UTC; null if something has not happened. A list is a named field
of an object, so that other fields can be added later.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedloom.server.planning.fair_share import MAX_PRIORITY, SHARES
from fedloom.server.queries.masking_views import MaskingClaim, MaskingProgress
from fedloom.server.queries.round_views import FailureView, RoundView

MAX_TTL_S = 366 * 24 * 3600.0

PROSE = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$"
"""Free text: of control characters only tabs and line breaks. Others could control a terminal that
shows them, and PostgreSQL cannot store NUL."""

MAX_NUMBER = 2**53
"""Largest id or round: JSON numbers are exact up to here; databases fail past 2^63."""


class _In(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Fault(BaseModel):
    """Why a request failed: what was expected, what was received, what to do."""

    message: str
    kind: Annotated[
        str,
        Field(
            description="usage, not_found, conflict, denied, refused, integrity, unavailable or "
            "internal"
        ),
    ]
    code: Annotated[str | None, Field(description="the refusal's code if kind is refused")]


class ErrorReply(BaseModel):
    """The body of every answer that is not a success."""

    error: Fault


class ReplicaView(BaseModel):
    """A server of several that share a ledger."""

    name: Annotated[str, Field(description="of its machine")]
    drives: Annotated[bool, Field(description="or it is a gate, which serves devices alone")]
    streams: Annotated[int, Field(description="of connected clients there")]


class CheckInsView(BaseModel):
    """Devices that check in: they come when told, wait a while for a task, and leave."""

    expected: Annotated[int, Field(description="that come when told, as far as is known")]
    waiting: Annotated[int, Field(description="connected now, without a task")]
    soon: Annotated[int, Field(description="due within a minute, or overdue and not missing")]
    missing: Annotated[int, Field(description="that did not come, nor long after it")]
    every_s: Annotated[float, Field(description="mean time between check-ins of a device")]


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
    epoch: Annotated[int | None, Field(description="of the replica that drives")] = None
    replicas: Annotated[
        list[ReplicaView], Field(description="that serve clients; empty for a server alone")
    ] = []
    check_ins: Annotated[CheckInsView | None, Field(description="null without such devices")] = None


class NewToken(_In):
    """A token to create."""

    client: Annotated[str | None, Field(description="null for a random readable name")] = None
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S, description="seconds until it expires")] = (
        24 * 3600.0
    )
    study: Annotated[str, Field(max_length=40, description="of the client; empty for none")] = ""
    devices: Annotated[
        int, Field(ge=0, le=1 << 20, description="most devices in a site's sum; 0: a device")
    ] = 0


class IssuedToken(BaseModel):
    """A token; its text is shown only once."""

    id: str
    client: str
    token: Annotated[str, Field(description="for the device; the server stores only its hash")]
    created_at: float
    expires_at: float
    enrolment: Annotated[str, Field(description="host:port where it is used")]


class TokenStatus(StrEnum):
    """Status of a token."""

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
    total: Annotated[int, Field(description="all tokens ever created")]
    more: Annotated[str | None, Field(description="`before` of the next page; null at the end")]


class StoredModel(BaseModel):
    """A model file in the store."""

    digest: Annotated[str, Field(description="SHA-256 of the file, hex")]
    size_bytes: int
    num_tensors: int
    num_values: int


class ModelView(BaseModel):
    """A model that a run started from (round 0) or committed."""

    digest: str
    run: str
    round: int
    size_bytes: int
    created_at: float
    pruned: Annotated[int | None, Field(description="null while its file is kept")] = None
    best: Annotated[bool, Field(description="the best of its run, by the run's [best]")] = False


class ModelList(BaseModel):
    """Models, oldest first."""

    models: list[ModelView]
    more: Annotated[
        str | None, Field(description="`before` of the page of older ones; null at the end")
    ] = None


class Promote(_In):
    """A promotion to make."""

    run: Annotated[
        str | None, Field(description="null: the latest run that started from or committed it")
    ] = None
    note: Annotated[str, Field(max_length=500, pattern=PROSE, description="free text")] = ""


class PromotionView(BaseModel):
    """A promotion of a model."""

    id: Annotated[int, Field(description="increases with every promotion")]
    at: float
    run: str
    round: int
    digest: str
    note: str


class Promoted(BaseModel):
    """What a promotion did, or would do."""

    promotion: Annotated[PromotionView | None, Field(description="null in a preview")]
    changed: Annotated[bool, Field(description="false if it was already promoted")]
    consequence: str


class PromotionList(BaseModel):
    """Promotions, newest first."""

    promotions: list[PromotionView]
    more: Annotated[int | None, Field(description="`before` of the next page; null at the end")]


class RollBackTo(_In):
    """A rollback to make."""

    round: Annotated[
        int, Field(ge=0, le=MAX_NUMBER, description="committed training round; 0: the beginning")
    ]


class NewRun(_In):
    """A run to start."""

    spec: Annotated[dict[str, Any], Field(description="as in run.toml")]
    model: Annotated[
        str, Field(description="digest of a stored model, or a unique prefix; empty with [flower]")
    ] = ""


class Described(_In):
    """A specification to check."""

    spec: Annotated[dict[str, Any], Field(description="as in run.toml")]


class Description(BaseModel):
    """A checked specification."""

    spec: Annotated[dict[str, Any], Field(description="with all defaults")]
    privacy: Annotated[
        dict[str, Any] | None, Field(description="its privacy claim; null without [privacy]")
    ]
    sums: Annotated[
        dict[str, Any] | None,
        Field(
            description="the grid of its sums: bits, exponent, step, largest_error, precision, "
            "vanishes (weight → largest value that becomes zero), bound (of a sum, in steps), and "
            "masking (its sessions) with [masking]; null for exact sums and with [privacy]"
        ),
    ] = None
    notes: Annotated[list[str], Field(description="on the clients that it would meet")] = []


class CheckedRun(_In):
    """A run to check against the clients."""

    spec: Annotated[dict[str, Any], Field(description="as in run.toml")]
    model: Annotated[
        str, Field(description="digest of a stored model, or a unique prefix; empty for `tensors`")
    ] = ""
    tensors: Annotated[
        dict[str, list[int]] | None,
        Field(description="shapes by name, of a model that the server does not have"),
    ] = None


class CheckFinding(BaseModel):
    """Something that concerns some clients."""

    text: Annotated[str, Field(description="with their number: 3 lack the tensor head")]
    count: int
    clients: Annotated[list[str], Field(description="names, the first 20")]


class RunCheck(BaseModel):
    """Which clients can take part in a run, from what the server knows of them."""

    summary: str
    total: Annotated[int, Field(description="clients that are enrolled")]
    able: Annotated[int, Field(description="of those, clients that nothing keeps out")]
    online: Annotated[int, Field(description="of those, clients that are connected")]
    goal: Annotated[int, Field(description="clients that a round waits for")]
    is_enough: Annotated[bool, Field(description="whether `able` reaches `goal`")]
    obstacles: Annotated[list[CheckFinding], Field(description="what keeps clients out")]
    remarks: Annotated[list[CheckFinding], Field(description="what may keep able clients out")]


class BestView(BaseModel):
    """A run's best model by its [best] table."""

    metric: str
    mode: Annotated[str, Field(description="min or max: whether less or more is better")]
    round: Annotated[
        int | None,
        Field(description="that made the model, 0: the initial one; null before a finite metric"),
    ]
    model: Annotated[str | None, Field(description="digest; null as `round`")]
    value: Annotated[float | None, Field(description="of its evaluation; null as `round`")]
    measured_in: Annotated[
        int | None, Field(description="round whose clients evaluated it; null as `round`")
    ]
    stale: Annotated[int, Field(description="evaluations since then without an improvement")]
    patience: Annotated[int, Field(description="such evaluations that end the run; 0: any number")]


class RunView(BaseModel):
    """A run."""

    id: str
    name: str
    state: Annotated[str, Field(description="queued, running, paused, finished, stopped or failed")]
    reason: str
    created_at: float
    ended_at: float | None
    model: Annotated[str, Field(description="digest of the current model")]
    rounds_total: Annotated[int, Field(description="training rounds in total")]
    rounds_committed: Annotated[int, Field(description="committed training rounds")]
    best: Annotated[
        BestView | None, Field(description="null before an evaluation, and in runs without one")
    ] = None
    privacy: Annotated[
        dict[str, Any] | None,
        Field(description="the full privacy claim; null without differential privacy"),
    ] = None
    masking: Annotated[
        MaskingClaim | None,
        Field(description="what the server can read of its updates; null if it is not masked"),
    ] = None
    priority: Annotated[
        int, Field(description="runs with a higher one take idle clients and places first")
    ] = 0
    share: Annotated[
        float, Field(description="of the tasks, among runs of one priority that wait for clients")
    ] = 1.0
    study: Annotated[str, Field(description="whose clients it uses; empty without one")] = ""
    place: Annotated[
        int | None, Field(description="in the queue of its study, from 1; null unless queued")
    ] = None


class Acted(RunView):
    """A run after an action on it, or before a previewed one."""

    changed: Annotated[bool, Field(description="false in a preview, or if nothing changed")]
    consequence: str


class RunList(BaseModel):
    """Runs, oldest first."""

    runs: list[RunView]


class MemberProgress(BaseModel):
    """A member's progress in training, as it reports."""

    fraction: Annotated[float, Field(ge=0, le=1)]
    loss: Annotated[float | None, Field(description="null if not reported")]


class LiveRound(BaseModel):
    """The open round, from its engine."""

    number: int
    kind: str
    state: str
    paused: bool
    clients: Annotated[dict[str, int], Field(description="number of members in each phase")]
    members: Annotated[dict[str, str], Field(description="phase of each member of the cohort")]
    progress: Annotated[
        dict[str, MemberProgress], Field(description="of members that train and report it")
    ] = {}
    training: Annotated[
        float | None, Field(description="mean of those fractions; null if none is reported")
    ] = None
    available: int
    held_back: Annotated[
        int, Field(description="clients that the privacy claim keeps out of this round")
    ] = 0
    left_to_others: Annotated[
        int, Field(description="available clients left to runs whose turn comes first")
    ] = 0
    accepted: int
    goal: int
    quorum: int
    concurrency: Annotated[
        int | None, Field(description="of a buffer: clients that train at a time")
    ] = None
    deadline_left_s: float | None
    gives_up_in_s: Annotated[
        float | None,
        Field(description="until it is abandoned, if failures put its quorum out of reach"),
    ] = None
    failures: Annotated[
        list[FailureView], Field(description="of its members, the most frequent first, at most 5")
    ] = []
    masking: Annotated[
        MaskingProgress | None, Field(description="of its sessions; null if it is not masked")
    ] = None


class LiveView(BaseModel):
    """Live status of an active run."""

    clients_available: int
    clients_cooling: Annotated[
        int, Field(description="of these, that the run may not draw now, as they cool off")
    ] = 0
    round: LiveRound | None = None


class FailingView(BaseModel):
    """What fails in a run, and what to do."""

    what: str
    todo: str
    stuck: Annotated[bool, Field(description="whether the run or its round cannot continue")]
    number: Annotated[int, Field(description="of the round that shows it")]


class RunDetail(RunView):
    """A run with its specification, latest rounds and live status."""

    spec: dict[str, Any]
    failing: Annotated[
        FailingView | None, Field(description="null if nothing fails, or few of many clients")
    ] = None
    time_left_s: Annotated[float | None, Field(description="null while unknown")] = None
    time_left_range_s: Annotated[
        tuple[float, float] | None, Field(description="null if time_left_s says enough")
    ] = None
    sums: Annotated[
        dict[str, Any] | None, Field(description="the grid of its sums, as in a description")
    ] = None
    rounds: Annotated[list[RoundView], Field(description="the latest, oldest first")]
    rounds_earlier: Annotated[
        int, Field(description="number of earlier rounds, in GET /v1/runs/RUN/rounds")
    ] = 0
    live: Annotated[LiveView | None, Field(description="null after the run has ended")]


class RefusalView(BaseModel):
    """Equal refused requests of a client, as one."""

    at: float
    client: str
    run: str
    round: int
    code: str
    message: str
    detail: Annotated[str, Field(description="only for operators")]
    times: Annotated[int, Field(description="number of equal ones within a minute")]


class RefusalList(BaseModel):
    """Refusals, newest first."""

    refusals: list[RefusalView]


class Action(StrEnum):
    """An operator's action on a run or on its open round."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CLOSE = "close"
    ABORT = "abort"
    EXTEND = "extend"
    RETRY = "retry"
    GOAL = "goal"
    PRIORITY = "priority"


class ActionArguments(_In):
    """Arguments of actions."""

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
        Field(ge=1, le=MAX_NUMBER, description="for goal: fewest updates; unchanged if null"),
    ] = None
    priority: Annotated[
        int | None,
        Field(
            ge=-MAX_PRIORITY,
            le=MAX_PRIORITY,
            description="for priority: the new one; unchanged if null",
        ),
    ] = None
    share: Annotated[
        float | None,
        Field(
            ge=SHARES[0],
            le=SHARES[1],
            allow_inf_nan=False,
            description="for priority: the new share; unchanged if null",
        ),
    ] = None
    round: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_NUMBER,
            description="act only if this round is open, so that a repeat has no effect",
        ),
    ] = None
    request: Annotated[
        str | None,
        Field(
            min_length=8,
            max_length=100,
            description="a unique text: a repeat of the request within a day has no effect and "
            "gets the same answer",
        ),
    ] = None
