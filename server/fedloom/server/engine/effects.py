"""What a round asks of its driver, in order.

`origin` is the round of the task that an effect is about: in a buffer, clients work across rounds.
None stands for the open round.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Opened:
    """The cohort is chosen. Store it before the offers that follow are sent.

    Attributes:
        cohort: its clients in the order of the offers; `Candidates` if drawn from a roster.
    """

    cohort: Sequence[str]


@dataclass(slots=True)
class Recruited:
    """A client joined the cohort. Store it before its offer is sent."""

    client: str


@dataclass(slots=True)
class Offer:
    """Send the task to a client; `again` for a member that reconnected."""

    client: str
    again: bool = False
    origin: int | None = None


@dataclass(slots=True)
class Withdraw:
    """Withdraw the task of a client."""

    client: str
    reason: str
    origin: int | None = None


@dataclass(slots=True)
class Close:
    """Admit no more updates, store those in flight, sum, commit, then feed `Committed`."""


@dataclass(slots=True)
class Abandon:
    """The round ended without a result.

    Attributes:
        reason: why.
        fault: every client that there was failed in the same way, so another round would too.
    """

    reason: str
    fault: bool = False


# ---- of masked rounds alone ------------------------------------------------------------------
# Store each before anything of it is sent. `session` is the number of a session in its round.


@dataclass(slots=True)
class OpenSessions:
    """Begin these sessions, in one transaction; then send each member its roster.

    Attributes:
        rosters: the width class and the members, by name, of session 0, 1, ….
    """

    rosters: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(slots=True)
class ForwardShares:
    """Send to each of these members (U2) their names, and the shares that are for it."""

    session: int
    shared: tuple[str, ...]


@dataclass(slots=True)
class Freeze:
    """Accept no more bodies; feed `BodyStored` for each that is stored, then `BodiesFrozen`."""

    session: int


@dataclass(slots=True)
class SendSurvivors:
    """Ask each of these members (U3) to sign that these are the survivors."""

    session: int
    masked: tuple[str, ...]


@dataclass(slots=True)
class SendSignatures:
    """Send the signatures of these members to some of them, and ask for their shares.

    Attributes:
        session: its number.
        signers: at least the threshold, all of U3.
        to: those that are asked.
    """

    session: int
    signers: tuple[str, ...]
    to: tuple[str, ...]


@dataclass(slots=True)
class Unmask:
    """Compute the session's sum from the shares of these members (U4), check and store it.

    Then feed `Unmasked` or `UnmaskFailed`.
    """

    session: int
    revealed: tuple[str, ...]


@dataclass(slots=True)
class AbandonSession:
    """Ask every member to give the session up, and to sign that unless it signed the survivors."""

    session: int
    reason: str


@dataclass(slots=True)
class SendClosing:
    """Send each member the proof that the session can never be unmasked: these signatures."""

    session: int
    closed: tuple[str, ...]


@dataclass(slots=True)
class Resend:
    """Send a member that reconnected the last message that its session sent it."""

    session: int
    client: str


SessionEffect = (
    ForwardShares
    | Freeze
    | SendSurvivors
    | SendSignatures
    | Unmask
    | AbandonSession
    | SendClosing
    | Resend
)
"""Every effect of a session."""

RoundEffect = Opened | Recruited | Offer | Withdraw | Close | Abandon | OpenSessions | SessionEffect
"""Every effect of a round, a buffer or a masked round."""
