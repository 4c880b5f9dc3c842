"""What can happen to a round, and what a round can ask of its shell: plain values.

They are slotted but not frozen: a frozen dataclass takes three times as long to make, and a
simulation makes millions. Nobody changes one.
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
    """A client took the task."""

    client: str


@dataclass(slots=True)
class OfferDeclined:
    """A client does not want the task; it is not asked again in this round."""

    client: str
    reason: str = ""


@dataclass(slots=True)
class ClientFailed:
    """A client took the task and gave up."""

    client: str
    reason: str = ""


@dataclass(slots=True)
class UpdateAccepted:
    """A client's update is checked and durable; from here on it counts, once."""

    client: str


@dataclass(slots=True)
class UpdateRefused:
    """A client's update was refused for what it holds; the round no longer waits for it.

    A fault of the transport (truncated, bad checksum) is for the client to send again: the shell
    does not report it here.
    """

    client: str
    code: str = ""


# ---- time ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Wake:
    """The time that `wake_at` named has come. A spurious one does no harm."""


# ---- what operators do -----------------------------------------------------------------------


@dataclass(slots=True)
class Pause:
    """Stop the clock: nothing is opened, recruited, closed or abandoned; updates still count."""


@dataclass(slots=True)
class Resume:
    """Start the clock again; the deadline and everyone's patience move by the pause."""


@dataclass(slots=True)
class Abort:
    """Give the round up."""

    reason: str


@dataclass(slots=True)
class CloseNow:
    """Close with what there is; at least one update must have been accepted."""


@dataclass(slots=True)
class ExtendDeadline:
    """Give the round this many more seconds."""

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


# ---- what the shell did ----------------------------------------------------------------------


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

# ---- what only buffers know --------------------------------------------------------------------


@dataclass(slots=True)
class NextBuffer:
    """The model of the last buffer is durable: open the next one.

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
    """No other buffer will be opened: nobody's work is wanted any more."""

    reason: str


BufferEvent = RoundEvent | NextBuffer | Disband
"""Every event that a buffer handles."""
