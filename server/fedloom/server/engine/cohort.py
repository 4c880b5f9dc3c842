"""The members of a round: the phase of each, and how long the round waits for silent ones.

A member has a time in which to answer its offer, and a grace period while it is out of contact.

Invariants: a member is in one phase; `accepted` counts each member once; only members that the
round waits for are out of contact, in the order in which their grace periods end; only offered ones
owe an answer, in the order in which it is due.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from math import inf
from types import MappingProxyType

from .failures import LONGEST


class Phase(StrEnum):
    """The phase of a member of the cohort."""

    OFFERED = "offered"
    TRAINING = "training"
    READY = "ready"
    """Has trained, and waits for its masking session or is in one; in masked rounds alone."""
    REPORTED = "reported"
    DECLINED = "declined"
    FAILED = "failed"
    REFUSED = "refused"
    LOST = "lost"
    """Out of contact for longer than the grace period, or its offer was left unanswered for the
    time to answer; its update still counts."""


_AT_WORK = frozenset({Phase.OFFERED, Phase.TRAINING})
_UNFINISHED = _AT_WORK | {Phase.READY, Phase.LOST}


class Cohort:
    """Phases by client, counted as they change: O(1) for each change."""

    __slots__ = ("_asked", "_away", "_counts", "_phases", "_reasons")

    def __init__(self) -> None:
        self._phases: dict[str, Phase] = {}
        self._reasons: dict[str, str] = {}  # of members that failed or were refused
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

    @property
    def possible(self) -> int:
        """Members whose update counts or may still: reported, at work or lost."""
        return self.accepted + self.at_work + self._counts[Phase.LOST]

    @property
    def failed(self) -> int:
        """Members that failed, or whose update was refused."""
        return self._counts[Phase.FAILED] + self._counts[Phase.REFUSED]

    def places_of(self, client: str) -> int:  # noqa: ARG002 - of a site several
        """Updates that a member may send: one."""
        return 1

    def failures(self) -> list[tuple[str, str, str]]:
        """Client, phase and reason of each member that failed, or whose update was refused."""
        return self._members_in(Phase.FAILED, Phase.REFUSED)

    def declines(self) -> list[tuple[str, str, str]]:
        """Client, phase and reason of each member that declined."""
        return self._members_in(Phase.DECLINED)

    def _members_in(self, *ended: Phase) -> list[tuple[str, str, str]]:
        return [
            (client, phase.value, self._reasons.get(client, ""))
            for client, phase in self._phases.items()
            if phase in ended
        ]

    def counts(self) -> dict[Phase, int]:
        """Members in each phase that a round can have, zeros included."""
        return {phase: count for phase, count in self._counts.items() if phase is not Phase.READY}

    def unfinished(self) -> Iterator[str]:
        """Members that may still be at work: offered, training, ready or lost."""
        return (client for client, phase in self._phases.items() if phase in _UNFINISHED)

    def is_unfinished(self, client: str) -> bool:
        """Whether the client is a member that may still be at work."""
        return self._phases.get(client) in _UNFINISHED

    def is_at_work(self, client: str) -> bool:
        """Whether the client is a member that the round waits for."""
        return self._phases.get(client) in _AT_WORK

    def put(self, client: str, phase: Phase, reason: str = "") -> None:
        """Add a client, or move it to another phase; `reason` is why it ended."""
        before = self._phases.get(client)
        if before is not None:
            self._counts[before] -= 1
        self._counts[phase] += 1
        self._phases[client] = phase
        if reason:
            self._reasons[client] = reason[:LONGEST]

    def offer(self, client: str, answer_until: float) -> None:
        """Add a client, or a member again, that has this long to answer its offer."""
        self._away.pop(client, None)
        self._asked.pop(client, None)  # the order is that of the latest offers
        self._asked[client] = answer_until
        self.put(client, Phase.OFFERED)

    def offer_all(self, clients: Collection[str], answer_until: float) -> None:
        """Add new clients, all different, that have this long to answer their offers."""
        self._asked.update(dict.fromkeys(clients, answer_until))
        self._phases.update(dict.fromkeys(clients, Phase.OFFERED))
        self._counts[Phase.OFFERED] += len(clients)

    def start_training(self, client: str) -> None:
        """Record that a member accepted its offer, in time or not."""
        if self._phases.get(client) in (Phase.OFFERED, Phase.LOST):
            self._asked.pop(client, None)
            self.put(client, Phase.TRAINING)

    def start_all(self, clients: Collection[str]) -> None:
        """Record that members, all different, accepted their offers in time."""
        for client in clients:
            del self._asked[client]
        self._phases.update(dict.fromkeys(clients, Phase.TRAINING))
        self._counts[Phase.OFFERED] -= len(clients)
        self._counts[Phase.TRAINING] += len(clients)

    def end(self, client: str, phase: Phase, reason: str = "") -> bool:
        """Move an unfinished member to a final phase; False for other clients."""
        if self._phases.get(client) not in _UNFINISHED:
            return False
        self._forget(client)
        self.put(client, phase, reason)
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

    def report_all(self, clients: Collection[str]) -> None:
        """Count the updates of members in training, all different."""
        self._phases.update(dict.fromkeys(clients, Phase.REPORTED))
        self._counts[Phase.TRAINING] -= len(clients)
        self._counts[Phase.REPORTED] += len(clients)

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
        self._reasons.pop(client, None)
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
        away, asked = self._away, self._asked  # mostly empty: a simulation asks a million times
        lost_at = next(iter(away.values())) if away else inf
        return min(lost_at, next(iter(asked.values()))) if asked else lost_at

    def delay(self, seconds: float) -> None:
        """Move every grace period and time to answer by the length of a pause."""
        for due in (self._away, self._asked):
            for client in due:
                due[client] += seconds

    def _forget(self, client: str) -> None:
        self._away.pop(client, None)
        self._asked.pop(client, None)


class MaskedCohort(Cohort):
    """The members of a masked round: `accepted` counts those that are ready, too."""

    __slots__ = ()

    @property
    def accepted(self) -> int:
        """Members that are ready, or whose update is in the sum."""
        return self._counts[Phase.REPORTED] + self._counts[Phase.READY]

    def make_ready(self, client: str) -> bool:
        """Record that a member has trained; False for one that is not at work or lost."""
        if self._phases.get(client) not in _AT_WORK | {Phase.LOST}:
            return False
        self._forget(client)
        self.put(client, Phase.READY)
        return True

    def leave(self, client: str, grace_until: float) -> None:
        """As of any member at work: only those in contact are in a session."""
        if self._phases.get(client) is Phase.READY:
            self.put(client, Phase.TRAINING)
        super().leave(client, grace_until)

    def counts(self) -> dict[Phase, int]:
        """Members in each phase, zeros included."""
        return dict(self._counts)
