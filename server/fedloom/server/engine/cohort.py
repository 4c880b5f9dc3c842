"""The members of a round: the phase of each, and how long the round waits for silent ones.

A member has a time in which to answer its offer, and a grace period while it is out of contact.

Invariants: a member is in one phase; `accepted` counts each member once; only members that the
round waits for are out of contact, in the order in which their grace periods end; only offered ones
owe an answer, in the order in which it is due.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import inf
from types import MappingProxyType


class Phase(StrEnum):
    """The phase of a member of the cohort."""

    OFFERED = "offered"
    TRAINING = "training"
    REPORTED = "reported"
    DECLINED = "declined"
    FAILED = "failed"
    REFUSED = "refused"
    LOST = "lost"
    """Out of contact for longer than the grace period, or its offer was left unanswered for the
    time to answer; its update still counts."""


_AT_WORK = frozenset({Phase.OFFERED, Phase.TRAINING})
_UNFINISHED = _AT_WORK | {Phase.LOST}


class Cohort:
    """Phases by client, counted as they change: O(1) for each change."""

    __slots__ = ("_asked", "_away", "_counts", "_phases")

    def __init__(self) -> None:
        self._phases: dict[str, Phase] = {}
        self._counts = dict.fromkeys(Phase, 0)
        # An OrderedDict and not a dict: the first key of a dict whose front was deleted is O(n).
        self._away: OrderedDict[str, float] = OrderedDict()
        self._asked: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._phases)

    def __contains__(self, client: object) -> bool:
        return client in self._phases

    @property
    def phases(self) -> Mapping[str, Phase]:
        """Client to phase, in the order of joining; a live view."""
        return MappingProxyType(self._phases)

    @property
    def accepted(self) -> int:
        """Updates counted so far."""
        return self._counts[Phase.REPORTED]

    @property
    def at_work(self) -> int:
        """Members that the round waits for: in contact, or in their grace period."""
        return self._counts[Phase.OFFERED] + self._counts[Phase.TRAINING]

    def counts(self) -> dict[Phase, int]:
        """Members in each phase, zeros included."""
        return dict(self._counts)

    def unfinished(self) -> Iterator[str]:
        """Members that may still be at work: offered, training or lost."""
        return (client for client, phase in self._phases.items() if phase in _UNFINISHED)

    def is_unfinished(self, client: str) -> bool:
        """Whether the client is a member that may still be at work."""
        return self._phases.get(client) in _UNFINISHED

    def put(self, client: str, phase: Phase) -> None:
        """Add a client, or move it to another phase."""
        before = self._phases.get(client)
        if before is not None:
            self._counts[before] -= 1
        self._counts[phase] += 1
        self._phases[client] = phase

    def offer(self, client: str, answer_until: float) -> None:
        """Add a client, or a member again, that has this long to answer its offer."""
        self._away.pop(client, None)
        self._asked.pop(client, None)  # the order is that of the latest offers
        self._asked[client] = answer_until
        self.put(client, Phase.OFFERED)

    def start_training(self, client: str) -> None:
        """Record that a member accepted its offer, in time or not."""
        if self._phases.get(client) in (Phase.OFFERED, Phase.LOST):
            self._asked.pop(client, None)
            self.put(client, Phase.TRAINING)

    def end(self, client: str, phase: Phase) -> bool:
        """Move an unfinished member to a final phase; False for other clients."""
        if self._phases.get(client) not in _UNFINISHED:
            return False
        self._forget(client)
        self.put(client, phase)
        return True

    def report(self, client: str) -> bool:
        """Count a member's update; False for a client that is no member or was counted before.

        A member that declined, failed or was refused counts as well: its update was acknowledged,
        so it must not be lost.
        """
        phase = self._phases.get(client)
        if phase is None or phase is Phase.REPORTED:
            return False
        self._forget(client)
        self.put(client, Phase.REPORTED)
        return True

    def leave(self, client: str, grace_until: float) -> None:
        """Record that a member at work is out of contact; a grace period that runs is kept."""
        if self._phases.get(client) in _AT_WORK:
            self._asked.pop(client, None)
            self._away.setdefault(client, grace_until)

    def contact(self, client: str) -> tuple[Phase, float | None]:
        """A member's phase, and when the round stops waiting for it if it stays silent."""
        return self._phases[client], self._away.get(client, self._asked.get(client))

    def drop(self, client: str) -> None:
        """Remove a member."""
        self._counts[self._phases.pop(client)] -= 1
        self._forget(client)

    def lose_until(self, now: float) -> None:
        """Stop waiting for members whose grace period or time to answer has ended."""
        for due in (self._away, self._asked):
            while next(iter(due.values()), inf) <= now:
                client = next(iter(due))
                self._forget(client)
                self.put(client, Phase.LOST)

    def next_loss(self) -> float:
        """When the round stops waiting for a silent member next; infinity if none is silent."""
        return min(next(iter(self._away.values()), inf), next(iter(self._asked.values()), inf))

    def delay(self, seconds: float) -> None:
        """Move every grace period and time to answer by the length of a pause."""
        for due in (self._away, self._asked):
            for client in due:
                due[client] += seconds

    def _forget(self, client: str) -> None:
        self._away.pop(client, None)
        self._asked.pop(client, None)
