"""The API's answers about masking sessions: who was asked, who sent what, and no content."""

from typing import Annotated

from pydantic import BaseModel, Field

STATES = (
    "sharing, masking (sends masked updates), frozen (waits for the other sessions), agreeing "
    "(signs the survivors), revealing, unmasking, done or abandoned"
)


class BlameView(BaseModel):
    """A member that is to blame for a session, or was in one that was spoiled."""

    client: str
    cause: Annotated[str, Field(description="false_shares, false_reveal or implausible")]
    words: Annotated[str, Field(description="what it did, as text")]


class SessionView(BaseModel):
    """A masking session of a round."""

    session: Annotated[int, Field(description="its number in the round, from 0")]
    state: Annotated[str, Field(description=STATES)]
    words: Annotated[str, Field(description="the state, as text")]
    reason: Annotated[str, Field(description="why it was abandoned; empty if it was not")]
    width_class: Annotated[str, Field(description="of all its members; empty without widths")]
    size: Annotated[int, Field(description="members (U1)")]
    threshold: Annotated[int, Field(description="members that every message needs")]
    drop_outs: Annotated[int, Field(description="most members that may drop out")]
    colluders: Annotated[
        int, Field(description="most members that may work with the server, and learn nothing")
    ]
    shared: Annotated[
        int | None, Field(description="members that dealt shares (U2); null before it is fixed")
    ]
    masked: Annotated[
        int | None,
        Field(description="survivors, whose updates are in the sum (U3); null as `shared`"),
    ]
    revealed: Annotated[
        int | None, Field(description="survivors that revealed shares (U4); null as `shared`")
    ]
    sent: Annotated[
        dict[str, int],
        Field(
            description="members whose message is stored, by phase: ready, shares, body, "
            "agreement, reveal, closing"
        ),
    ]
    closed: Annotated[
        int, Field(description="members that signed that they gave it up, and not its survivors")
    ]
    proven_dead: Annotated[
        bool,
        Field(
            description="whether so many gave it up that nobody can ever unmask it: its members "
            "may mask their updates again"
        ),
    ]
    blamed: list[BlameView]
    opened_at: float
    deadline_at: Annotated[float, Field(description="when its members forget their secrets")]


class SessionList(BaseModel):
    """The masking sessions of a round, by number."""

    sessions: Annotated[list[SessionView], Field(description="none if the round is not masked")]


class SessionMember(BaseModel):
    """A member of a masking session."""

    client: str
    sent: Annotated[
        dict[str, float], Field(description="phase of each stored message → when it was stored")
    ]
    counts: Annotated[
        bool | None, Field(description="whether its update is in a sum; null while that is open")
    ]
    closed: Annotated[bool, Field(description="whether it gave the session up")]
    blamed: Annotated[list[str], Field(description="causes")]


class SessionDetail(SessionView):
    """A masking session with its members by name."""

    run: str
    round: int
    members: list[SessionMember]


class MaskingClaim(BaseModel):
    """What the server can read of a masked run."""

    smallest_sum: Annotated[int, Field(description="devices whose updates are in a sum, at least")]
    largest_sum: int
    smallest_session: int
    largest_session: int
    colluders: Annotated[
        int, Field(description="members of the smallest session that may work with the server")
    ]
    words: str


class MaskingProgress(BaseModel):
    """How far the sessions of the open round are."""

    step: Annotated[
        int,
        Field(
            description="of the session furthest behind: 0 before they open, 1 shares, 2 masked "
            "updates, 3 signatures, 4 reveals"
        ),
    ]
    steps: Annotated[int, Field(description="number of steps")]
    sessions: Annotated[int, Field(description="0 before they open")]
    states: Annotated[dict[str, int], Field(description="number of sessions in each state")]
    sent: Annotated[int, Field(description="members that sent the message of this step")]
    asked: Annotated[int, Field(description="members that were asked for it")]
