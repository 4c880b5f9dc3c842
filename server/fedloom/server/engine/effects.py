"""What a round asks of its driver, in order.

`origin` is the round of the task that an effect is about: in a buffer, clients work across rounds.
None stands for the open round.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Opened:
    """The cohort is chosen. Store it before the offers that follow are sent."""

    cohort: tuple[str, ...]


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
    """The round ended without a result."""

    reason: str


RoundEffect = Opened | Recruited | Offer | Withdraw | Close | Abandon
"""Every effect of a round."""
