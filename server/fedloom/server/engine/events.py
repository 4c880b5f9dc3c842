"""The events of a round: what happens to it, as plain values.

They are slotted but not frozen: a frozen dataclass takes three times as long to make, and a
simulation makes millions. No code changes one.
"""

from dataclasses import dataclass

from .selection import Select

# ---- what clients do -------------------------------------------------------------------------


@dataclass(slots=True)
class Attended:
    """A client is in contact and idle: a newcomer, or a member of the cohort that came back."""

    client: str


@dataclass(slots=True)
class Left:
    """A client's last stream ended, or it is no longer available to this round."""

    client: str


@dataclass(slots=True)
class OfferAccepted:
    """A client accepted the task."""

    client: str


@dataclass(slots=True)
class OfferDeclined:
    """A client declined the task; it is not asked again in this round."""

    client: str
    reason: str = ""


@dataclass(slots=True)
class ClientFailed:
    """A client accepted the task and failed."""

    client: str
    reason: str = ""


@dataclass(slots=True)
class UpdateAccepted:
    """A client's update is checked and durable; from here on it counts, once."""

    client: str


@dataclass(slots=True)
class UpdateRefused:
    """A client's update was refused for its content; the round no longer waits for it.

    After a transport fault (truncated, bad checksum) the client sends it again: the driver does
    not report those here.
    """

    client: str
    code: str = ""


# ---- time ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Wake:
    """The time of `wake_at` has come. A spurious one changes nothing."""


# ---- what operators do -----------------------------------------------------------------------


@dataclass(slots=True)
class Pause:
    """Stop the clock: nothing is opened, recruited, closed or abandoned; updates still count."""


@dataclass(slots=True)
class Resume:
    """Start the clock again; the deadline and every grace period move by the pause."""


@dataclass(slots=True)
class Abort:
    """End the round without a result."""

    reason: str


@dataclass(slots=True)
class CloseNow:
    """Close with the updates so far; at least one must have been accepted."""


@dataclass(slots=True)
class ExtendDeadline:
    """Move the deadline by this many seconds."""

    seconds: float


@dataclass(slots=True)
class ChangeGoal:
    """Want another number of updates, from now on.

    Attributes:
        goal: updates; at least 1.
        quorum: updates, from 1 to goal.
    """

    goal: int
    quorum: int


# ---- what the driver did ---------------------------------------------------------------------


@dataclass(slots=True)
class Committed:
    """The round's result is durable."""


@dataclass(slots=True)
class CommitFailed:
    """The round's result could not be made (the strategy raised) or stored."""

    reason: str


RoundEvent = (
    Attended
    | Left
    | OfferAccepted
    | OfferDeclined
    | ClientFailed
    | UpdateAccepted
    | UpdateRefused
    | Wake
    | Pause
    | Resume
    | Abort
    | CloseNow
    | ExtendDeadline
    | ChangeGoal
    | Committed
    | CommitFailed
)
"""Every event that a round handles."""

# ---- of buffers alone ------------------------------------------------------------------------


@dataclass(slots=True)
class NextBuffer:
    """Open the next buffer; the model of the last one is durable.

    Attributes:
        number: of the round that it is; the next after the last one's.
        select: draws who is asked in it.
        last: the run wants no other after it.
    """

    number: int
    select: Select
    last: bool = False


@dataclass(slots=True)
class Disband:
    """No other buffer will open: end all work."""

    reason: str


BufferEvent = RoundEvent | NextBuffer | Disband
"""Every event that a buffer handles."""
