"""The API's answers about rounds and their members; see `fedloom.server.queries.views`."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from fedloom.server.queries.masking_views import SessionView


class FailureView(BaseModel):
    """Members of a round that failed in the same way."""

    how: Annotated[str, Field(description="failed, on the device, or refused, by the server")]
    count: Annotated[int, Field(description="of these members")]
    message: Annotated[str, Field(description="of one of them: the error, or the refusal")]
    client: Annotated[str, Field(description="that member")]


class RoundCounts(BaseModel):
    """Members of a round by progress, from selected to counted."""

    selected: Annotated[int, Field(description="members of the cohort")]
    took: Annotated[int, Field(description="accepted the offer")]
    training: Annotated[int, Field(description="began to train")]
    uploaded: Annotated[int, Field(description="sent a whole update")]
    counted: Annotated[int, Field(description="reported, and counted")]
    declined: int
    failed: Annotated[int, Field(description="reported a failure")]
    refused: Annotated[int, Field(description="their update was refused")]
    late: Annotated[int, Field(description="in contact, but not done when the round ended")]
    lost: Annotated[
        int, Field(description="out of contact, or its offer unanswered, when the round ended")
    ]
    p50_s: Annotated[float | None, Field(description="from offer to accepted update, median")]
    p95_s: float | None
    bytes_down: int
    bytes_up: int
    retries: Annotated[int, Field(description="offers, downloads, uploads beyond each first")]
    failures: Annotated[
        list[FailureView], Field(description="the most frequent first, at most 5")
    ] = []
    shapes: Annotated[
        dict[str, int],
        Field(
            description="sessions by shape, the most frequent first: - checked in, v downloaded, "
            "[ training started, ] completed, + upload started, ^ accepted, # rejected, * error, "
            "! interrupted (Bonawitz et al. 2019, Table 1)"
        ),
    ]


class RoundView(BaseModel):
    """A round of a run."""

    number: int
    kind: Annotated[str, Field(description="train or evaluate")]
    state: Annotated[
        str, Field(description="reporting, masking, closing, sent, committed or abandoned")
    ]
    reason: str
    cause: Annotated[
        str | None,
        Field(
            description="why it was abandoned: quorum, too_few (updates for the aggregation), "
            "fault, or stopped (by an operator); null if not abandoned or not recorded"
        ),
    ] = None
    opened_at: float
    deadline_at: float
    closed_at: float | None
    undone_at: Annotated[
        float | None, Field(description="when the run was rolled back to before this round")
    ] = None
    accepted: Annotated[int, Field(description="updates that counted")]
    staleness: Annotated[
        float, Field(description="mean models committed since the updates' own; 0 if synchronous")
    ] = 0.0
    clients: Annotated[RoundCounts | None, Field(description="its members by progress")] = None
    model_in: str
    model_out: str | None
    training: Annotated[
        dict[str, Any] | None,
        Field(
            description="num_examples and values, the weighted means; quantiles over clients, with "
            "the quartiles; disagree, the metrics whose mean is outside the quartiles; by the "
            "run's [metrics] also histograms, not_finite (values that quantiles and histograms "
            "exclude) and clients"
        ),
    ]
    evaluation: Annotated[dict[str, Any] | None, Field(description="the same, of model_in")]
    privacy: Annotated[
        dict[str, float] | None,
        Field(description="epsilon and delta of a private run up to this round"),
    ] = None
    underflow: Annotated[
        float | None,
        Field(
            description="share of values other than zero that a sum with sum_bits rounded to zero; "
            "null for exact sums and private runs"
        ),
    ] = None

    @property
    def failures(self) -> list[FailureView]:
        """Of its members, the most frequent first."""
        return self.clients.failures if self.clients else []


class RoundList(BaseModel):
    """Rounds, newest first."""

    rounds: list[RoundView]
    more: Annotated[int | None, Field(description="`before` of the next page; null at the end")]


class SiteMember(BaseModel):
    """A client of a site, whose update is in the site's sum."""

    name: str
    devices: Annotated[int, Field(description="1 of a device")]
    members: Annotated[list["SiteMember"], Field(description="of a site that names them")]


class MemberView(BaseModel):
    """A member of a round; times are null for events that did not happen."""

    client: str
    phase: Annotated[
        str,
        Field(
            description="offered, training, ready (trained; in or before a masking session), "
            "reported, declined, failed, refused, late (in contact, not done when the round "
            "ended) or lost (out of contact, or its offer unanswered)"
        ),
    ]
    shape: Annotated[str, Field(description="its session, as in `shapes` of a round")]
    reason: Annotated[str, Field(description="of a failure or refusal, as text")]
    code: Annotated[str | None, Field(description="of its last refusal")] = None
    offered_at: float | None
    took_at: float | None = None
    download_began_at: float | None = None
    download_ended_at: float | None = None
    training_began_at: float | None = None
    upload_began_at: float | None = None
    upload_ended_at: float | None = None
    accepted_at: float | None = None
    ended_at: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    retries: int | None = None
    counts_in: Annotated[int | None, Field(description="round whose sum its update is in")] = None
    staleness: int | None = None
    weight: float | None = None
    norm: Annotated[
        float | None, Field(description="Euclidean, of its update; null for an evaluation")
    ] = None
    num_examples: Annotated[
        int | None, Field(description="trained on; evaluated on, in a round of evaluation")
    ] = None
    training: Annotated[dict[str, Any] | None, Field(description="its metrics")] = None
    evaluation: dict[str, Any] | None = None
    places: Annotated[
        int | None, Field(description="of a site: most devices that its sum may have")
    ] = None
    devices: Annotated[
        int | None, Field(description="of a site: devices whose updates are in its sum")
    ] = None
    members: Annotated[
        list[SiteMember] | None, Field(description="of a site that names them: its clients")
    ] = None


class RoundDetail(RoundView):
    """A round with its members by name."""

    run: str
    members: list[MemberView]
    more: Annotated[str | None, Field(description="`after` of the next page; null at the end")]
    sessions: Annotated[
        list[SessionView], Field(description="masking sessions; none if it is not masked")
    ] = []
