"""The API's requests and answers about clients; see `fedloom.server.queries.views`."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedloom.server.queries.round_views import MemberView
from fedloom.server.queries.views import PROSE

_CONTROLS = r"\x00-\x1f\x7f-\x9f"
ShortText = Annotated[str, Field(max_length=120, pattern=rf"^[^{_CONTROLS}]*$")]
LabelName = Annotated[str, Field(min_length=1, max_length=120, pattern=rf"^[^={_CONTROLS}]+$")]


class ClientState(StrEnum):
    """State to filter clients by."""

    ONLINE = "online"
    OFFLINE = "offline"
    DUE = "due"
    WORKING = "working"
    IDLE = "idle"
    FAILING = "failing"
    COOLING = "cooling"
    QUARANTINED = "quarantined"
    DRAINED = "drained"
    REVOKED = "revoked"


class LastError(BaseModel):
    """The latest failed or refused task of a client."""

    text: str
    run: str
    round: int
    at: float


class GpuView(BaseModel):
    """A GPU of a device; null for what it does not report."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    busy: Annotated[float | None, Field(description="percent of the time")]
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature: Annotated[float | None, Field(description="°C")]


class DeviceView(BaseModel):
    """The latest readings of a device, as its owner lets them leave; null for the others."""

    model_config = ConfigDict(from_attributes=True)

    at: Annotated[float, Field(description="when they came")]
    cpu: Annotated[float | None, Field(description="percent of all processors")]
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature: Annotated[float | None, Field(description="of the hottest sensor, °C")]
    battery: Annotated[float | None, Field(description="charge, percent")]
    mains: Annotated[bool | None, Field(description="whether it runs on mains power")]
    gpus: list[GpuView]


class ConductView(BaseModel):
    """How an active run treats a client for its part in masking sessions."""

    run: str
    words: Annotated[str, Field(description="drawn last, and why, as text")]


class ClientView(BaseModel):
    """A client."""

    name: str
    state: Annotated[
        ClientState,
        Field(
            description="the first that applies: revoked, quarantined, drained, cooling (failing, "
            "and gets no offers for some time), failing (its last tasks failed or were refused), "
            "working, idle, due (it comes when it was told), offline"
        ),
    ]
    status: Annotated[str, Field(description="active or revoked")]
    online: bool
    task: Annotated[str | None, Field(description="RUN/ROUND that occupies it")]
    hold: Annotated[
        str | None,
        Field(description="quarantine (no offers, updates refused) or drain (no offers)"),
    ] = None
    hold_reason: str | None = None
    held_at: float | None = None
    enrolled_at: float
    revoked_at: float | None
    certificate_until: float | None
    seen_at: Annotated[
        float | None, Field(description="last connected or disconnected; now if online")
    ] = None
    due_at: Annotated[
        float | None,
        Field(
            description="when it checks in next; null if it is connected, holds a stream, or did "
            "not come long after it was due"
        ),
    ] = None
    version: Annotated[str | None, Field(description="of its SDK, as it reports")] = None
    labels: Annotated[dict[str, str], Field(description="set by operators")] = {}
    own_labels: Annotated[dict[str, str], Field(description="set by the device")] = {}
    note: str | None = None
    study: Annotated[str | None, Field(description="null or empty for none")] = None
    devices: Annotated[
        int | None, Field(description="most in a sum of this site; null or 0: a device")
    ] = None
    asked: Annotated[int, Field(description="rounds that selected it, ended or open")] = 0
    counted: Annotated[int, Field(description="of those: rounds that counted its update")] = 0
    declined: int = 0
    failed: int = 0
    refused: int = 0
    late: int = 0
    lost: int = 0
    success_rate: Annotated[
        float | None,
        Field(description="counted, of its tasks that ended and were not declined; null if none"),
    ] = None
    success_level: Annotated[
        str | None,
        Field(description="ok (90 % or more), warn, or bad (below 50 %); null below three tasks"),
    ] = None
    failures: Annotated[
        int,
        Field(description="recent failed or refused tasks; an accepted update halves their number"),
    ] = 0
    last_error: LastError | None = None
    cools_until: Annotated[float | None, Field(description="when it gets offers again")] = None
    conduct: Annotated[
        list[ConductView], Field(description="in masking sessions, where an active run acts on it")
    ] = []
    device: Annotated[
        DeviceView | None,
        Field(description="null without readings since the server's start, and in lists"),
    ] = None
    last_counted_at: float | None = None
    staleness: Annotated[
        float | None, Field(description="mean number of models committed since its updates' own")
    ] = None


class ClientList(BaseModel):
    """Clients by name."""

    clients: list[ClientView]
    total: Annotated[int, Field(description="clients that match the filters")]
    more: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class LabelShareView(BaseModel):
    """Clients that share a value of a label."""

    value: Annotated[str | None, Field(description="null for clients without the label")]
    clients: int
    asked: Annotated[int, Field(description="times that a round drew one of them")]
    counted: Annotated[int, Field(description="of these, updates that counted")]


class LabelShares(BaseModel):
    """How often clients were asked, by the value of a label."""

    label: str
    clients: Annotated[int, Field(description="active ones")]
    asked: Annotated[int, Field(description="times that a round drew a client")]
    shares: Annotated[list[LabelShareView], Field(description="most clients first, at most 200")]


class PartView(MemberView):
    """A client's part in a round."""

    run: str
    round: int
    kind: str
    round_state: str


class PartList(BaseModel):
    """A client's parts in rounds, newest first."""

    parts: list[PartView]
    more: Annotated[float | None, Field(description="`before` of the next page; null at the end")]


class Versions(BaseModel):
    """Number of clients per version of the SDK."""

    versions: dict[str, int]


class ClientActed(ClientView):
    """A client after an action on it, or before a previewed one."""

    changed: Annotated[bool, Field(description="false in a preview, or if nothing changed")]
    consequence: str


class Hold(StrEnum):
    """Actions that exclude a client from offers, or end that."""

    QUARANTINE = "quarantine"
    DRAIN = "drain"
    RELEASE = "release"


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Why(_In):
    """A reason, for the audit trail."""

    reason: Annotated[str, Field(max_length=500, pattern=PROSE)] = ""


class Note(_In):
    """An operator's note about a client."""

    note: Annotated[str, Field(max_length=2000, pattern=PROSE)]


class NewStudy(_In):
    """A client's new study."""

    study: Annotated[str, Field(max_length=40, description="empty for none")]


class SiteDevices(_In):
    """For how many devices a site is registered."""

    devices: Annotated[int, Field(ge=1, le=1 << 20, description="most in one of its sums")]


class Labels(_In):
    """Labels to set; null removes one."""

    labels: Annotated[dict[LabelName, ShortText | None], Field(max_length=64)]
