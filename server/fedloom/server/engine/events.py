"""The events of a round, as plain values.

They are not frozen, but no code changes one: a frozen dataclass takes three times as long to make,
and a simulation makes millions.
"""

from dataclasses import dataclass

from .selection import Select

# ---- what clients do -------------------------------------------------------------------------


@dataclass(slots=True)
class Attended:
    """A client is in contact and idle: a new client, or a member that reconnected."""

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
    """A client declined the task; this round does not ask it again."""

    client: str
    reason: str = ""


@dataclass(slots=True)
class ClientFailed:
    """A client accepted the task and failed."""

    client: str
    reason: str = ""


@dataclass(slots=True)
class UpdateAccepted:
    """A client's update is checked and durable; it counts, once.

    `devices` are those whose updates it sums: of a site several.
    """

    client: str
    devices: int = 1


@dataclass(slots=True)
class UpdateRefused:
    """A client's update was refused for its content; the round no longer waits for it.

    The driver does not report transport faults (truncated, bad checksum): the client retries.
    `reason` is the refusal's code, a colon and its message.
    """

    client: str
    reason: str = ""


# ---- time ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Wake:
    """The time of `wake_at` has come. An early one changes nothing."""


# ---- what operators do -----------------------------------------------------------------------


@dataclass(slots=True)
class Pause:
    """Pause the clock: nothing is opened, recruited, closed or abandoned; updates still count."""


@dataclass(slots=True)
class Resume:
    """Resume the clock; the deadline and every grace period move by the pause."""


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
    """Change the number of updates wanted, from now on.

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
    """The round's result could not be computed (the strategy raised) or stored."""

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
        number: of its round; one more than the last one's.
        select: draws the clients to ask.
        last: whether it is the last buffer of the run.
    """

    number: int
    select: Select
    last: bool = False


@dataclass(slots=True)
class Disband:
    """No further buffer will open: end all work."""

    reason: str


BufferEvent = RoundEvent | NextBuffer | Disband
"""Every event that a buffer handles."""
