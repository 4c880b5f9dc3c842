"""The events of a masked round: those of its clients' sessions, as plain values.

"Stored" means durable: the driver stores a client's message before it feeds the event. A message
is addressed by session, phase and client, so an event that comes again changes nothing.
"""

from dataclasses import dataclass

from .events import Abort, Attended, ClientFailed, Left, RoundEvent, Wake

# ---- what clients do -------------------------------------------------------------------------


@dataclass(slots=True)
class Ready:
    """A client has trained, and its signed advert is checked: it may be in a session.

    Attributes:
        client: its name.
        width_class: what its update covers; the members of a session have one class.
    """

    client: str
    width_class: str = ""


@dataclass(slots=True)
class SharesStored:
    """A member's encrypted shares for all its peers are stored."""

    client: str


@dataclass(slots=True)
class BodyStored:
    """A member's masked body is accepted: it is in the ledger."""

    client: str


@dataclass(slots=True)
class AgreementStored:
    """A member's valid signature of the survivors is stored."""

    client: str


@dataclass(slots=True)
class RevealStored:
    """A member's shares, each fitting its dealer's digest, are stored.

    Attributes:
        client: its name.
        complete: whether it has a share of every secret; False after a complaint.
    """

    client: str
    complete: bool = True


@dataclass(slots=True)
class ClosingStored:
    """A member's signature that it gave an abandoned session up is stored."""

    client: str


# ---- what the driver did ---------------------------------------------------------------------


@dataclass(slots=True)
class BodiesFrozen:
    """The ledger accepts no further body of this session; `BodyStored` was fed for each it has."""

    session: int


@dataclass(slots=True)
class Unmasked:
    """The sum of this session is computed, plausible and stored."""

    session: int


@dataclass(slots=True)
class UnmaskFailed:
    """The sum of this session could not be computed, or is not plausible."""

    session: int
    reason: str


# ---- what the round decides ------------------------------------------------------------------


@dataclass(slots=True)
class AllFrozen:
    """Every session of the round has frozen its survivors, and together they meet the quorum."""


MemberEvent = SharesStored | BodyStored | AgreementStored | RevealStored | ClosingStored
"""What a round passes on to the session of the client."""

DriverEvent = BodiesFrozen | Unmasked | UnmaskFailed
"""What a round passes on to the session of this number."""

SessionEvent = MemberEvent | DriverEvent | Attended | Left | ClientFailed | Wake | Abort | AllFrozen
"""Every event that a session handles."""

MaskedEvent = RoundEvent | Ready | MemberEvent | DriverEvent
"""Every event that a masked round handles."""
