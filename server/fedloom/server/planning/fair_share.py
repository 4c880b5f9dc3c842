"""Which run takes idle clients first, when several runs want the same ones: pure.

Runs with a higher priority come first. Among runs of one priority, start-time fair queueing
decides: a run has a virtual time, its tasks so far divided by its share, and the run with the
least one comes first; of two equal ones the run that was submitted earlier. A run that wants no
clients for a while gains no claim to more of them later: its virtual time follows that of the
others.

Source: Goyal, Vin and Cheng 1997, "Start-time Fair Queuing", section 2. Of two runs that wait all
the time, tasks divided by share differ by at most one cohort of each, divided by its share
(theorem 1).

Invariants: two runs of different studies do not affect each other. Of any two runs of one study,
one comes first.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from fedloom.protocol.errors import UsageError

MAX_PRIORITY = 1000
SHARES = (0.001, 1000.0)
"""Least and largest share."""


def check_priority(priority: int) -> None:
    """Check a priority.

    Raises:
        UsageError: it is out of its range.
    """
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise UsageError(
            f"Expected a priority from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}."
        )


def check_share(share: float) -> None:
    """Check a share.

    Raises:
        UsageError: it is out of its range.
    """
    if not SHARES[0] <= share <= SHARES[1]:
        raise UsageError(f"Expected a share from {SHARES[0]:g} to {SHARES[1]:g}, got {share:g}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a run wants of the idle clients.

    Attributes:
        waiting: whether it can go on only with further clients, and enough are connected.
        clients: to leave idle for it, by runs that come after it.
    """

    waiting: bool = False
    clients: int = 0


@dataclass(slots=True)
class _Run:
    study: str
    priority: int
    share: float
    submitted: tuple[float, str]
    virtual: float = 0.0


class FairShare:
    """The runs that share clients, and the virtual time of each."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._now: dict[tuple[str, int], float] = {}  # virtual time by study and priority

    def __len__(self) -> int:
        return len(self._runs)

    def add(
        self, run: str, *, study: str = "", priority: int = 0, share: float = 1.0, at: float = 0.0
    ) -> None:
        """Add a run, submitted `at` seconds since the epoch."""
        now = self._now.get((study, priority), 0.0)
        self._runs[run] = _Run(study, priority, share, (at, run), now)

    def change(self, run: str, *, priority: int, share: float) -> None:
        """Change the priority and the share of a run; among new equals it starts as a new run."""
        found = self._runs[run]
        if found.priority != priority:
            found.virtual = self._now.get((found.study, priority), 0.0)
        found.priority, found.share = priority, share

    def remove(self, run: str) -> None:
        """Remove a run that has ended, if it is there."""
        self._runs.pop(run, None)

    def order(self) -> list[str]:
        """All runs, the first one first."""
        return sorted(self._runs, key=lambda run: self._rank(self._runs[run]))

    def set_aside(self, run: str, demand_of: Callable[[str], Demand], most: float = inf) -> int:
        """Idle clients that a run leaves to those that come before it; at `most` it is enough.

        A run with a higher priority keeps what its next round needs; one of the same priority
        keeps clients only while it waits for them.
        """
        mine, total = self._runs[run], 0
        for name in self._before(mine):
            demand = demand_of(name)
            if demand.waiting or self._runs[name].priority > mine.priority:
                total += demand.clients
            if total >= most:
                break
        return total

    def take(self, run: str, tasks: int, waiting: Callable[[str], bool]) -> None:
        """Count tasks that a run gives to clients now.

        `waiting` returns whether a run waits for clients; others fall behind no further.
        """
        mine = self._runs[run]
        group = (mine.study, mine.priority)
        now = self._now[group] = max(self._now.get(group, 0.0), mine.virtual)
        for name, other in self._runs.items():
            behind = other is not mine and (other.study, other.priority) == group
            if behind and other.virtual < now and not waiting(name):
                other.virtual = now
        mine.virtual += tasks / mine.share

    def _before(self, mine: _Run) -> list[str]:
        rank = self._rank(mine)
        return [
            name
            for name, other in self._runs.items()
            if other.study == mine.study and self._rank(other) < rank
        ]

    def _rank(self, run: _Run) -> tuple[int, float, tuple[float, str]]:
        return -run.priority, run.virtual, run.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A run that waits for its start.

    Attributes:
        run: its id.
        study: whose queue it is in.
        priority: of the run.
        submitted: seconds since the epoch.
    """

    run: str
    study: str
    priority: int
    submitted: float


def queue_order(queued: Iterable[Queued]) -> list[Queued]:
    """Runs in the order of their start: by priority, then by time of submission."""
    return sorted(queued, key=lambda each: (-each.priority, each.submitted, each.run))


def positions(queued: Iterable[Queued]) -> dict[str, int]:
    """The place of each run in the queue of its study, from 1."""
    places: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for each in queue_order(queued):
        places[each.run] = lengths[each.study] = lengths.get(each.study, 0) + 1
    return places


def to_start(queued: Iterable[Queued], running: Mapping[str, int], most: int) -> list[str]:
    """Queued runs that start now.

    Args:
        queued: those that wait.
        running: number of running runs by study.
        most: of running runs in each study; 0 for no limit.
    """
    waiting = list(queued)
    places = positions(waiting)
    return [
        each.run
        for each in queue_order(waiting)
        if not most or running.get(each.study, 0) + places[each.run] <= most
    ]
