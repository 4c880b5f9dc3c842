"""What the API tells of rounds and of their members; see `fedloom.server.queries.views`."""

from typing import Annotated, Any

from pydantic import BaseModel, Field


class RoundCounts(BaseModel):
    """What the members of a round did: a funnel from those asked to those that counted."""

    selected: Annotated[int, Field(description="members of the cohort: asked")]
    took: Annotated[int, Field(description="accepted the offer")]
    training: Annotated[int, Field(description="began to train")]
    uploaded: Annotated[int, Field(description="sent a whole update")]
    counted: Annotated[int, Field(description="reported, and counted")]
    declined: int
    failed: Annotated[int, Field(description="gave up")]
    refused: Annotated[int, Field(description="sent what was turned away for good")]
    late: Annotated[int, Field(description="in contact, and not done when the round ended")]
    lost: Annotated[int, Field(description="out of contact when the round ended")]
    p50_s: Annotated[float | None, Field(description="from offer to accepted update, median")]
    p95_s: float | None
    bytes_down: int
    bytes_up: int
    retries: Annotated[int, Field(description="offers, downloads, uploads beyond each first")]
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
    state: Annotated[str, Field(description="reporting, closing, committed or abandoned")]
    reason: str
    cause: Annotated[
        str | None,
        Field(
            description="why it was abandoned: quorum, too_few (updates for the aggregation), "
            "fault, or stopped (by an operator); null where it was not, or before this was kept"
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
        float, Field(description="models committed since an update's own, mean; 0 if synchronous")
    ] = 0.0
    clients: Annotated[RoundCounts | None, Field(description="what its members did")] = None
    model_in: str
    model_out: str | None
    training: Annotated[
        dict[str, Any] | None,
        Field(
            description="num_examples and values, the weighted means; by the run's [metrics] also "
            "quantiles, histograms, not_finite (how many values these two left out) and clients"
        ),
    ]
    evaluation: Annotated[dict[str, Any] | None, Field(description="likewise, of the model in")]
    privacy: Annotated[
        dict[str, float] | None,
        Field(description="epsilon and delta of the run up to this round, where it is private"),
    ] = None


class RoundList(BaseModel):
    """Rounds, newest first."""

    rounds: list[RoundView]
    more: Annotated[int | None, Field(description="`before` of the next page; null at the end")]


class MemberView(BaseModel):
    """A client's part in a round; times are null where nothing was seen."""

    client: str
    phase: Annotated[
        str,
        Field(
            description="offered, training, reported, declined, failed, refused, late (in contact, "
            "not done when the round ended) or lost (out of contact)"
        ),
    ]
    shape: Annotated[str, Field(description="its session, as in `shapes` of a round")]
    reason: Annotated[str, Field(description="in words, of what went wrong")]
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
        float | None, Field(description="Euclidean, of its update; null of an evaluation")
    ] = None
    num_examples: Annotated[
        int | None, Field(description="trained on; evaluated on, in a round of evaluation")
    ] = None
    training: Annotated[dict[str, Any] | None, Field(description="its metrics")] = None
    evaluation: dict[str, Any] | None = None


class RoundDetail(RoundView):
    """A round with its members by name."""

    run: str
    members: list[MemberView]
    more: Annotated[str | None, Field(description="`after` of the next page; null at the end")]
