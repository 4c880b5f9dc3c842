"""A fleet of devices that check in, on a virtual clock: when they come, wait, and are drawn.

Nothing is trained: a member works for a given time, and is then told when to come next. The times
are those of `fedloom.server.check_in_pace`, and rounds are drawn by the server's engine, so this is
what a server would do with devices whose messages take no time. A million devices are handled in
slices of one wait, with arrays: an event each would take minutes.

Source of the pace: Bonawitz et al. 2019, section 2.3.

Invariants: a device that waits leaves after `hold_s`, unless it is drawn. A round opens at a time
when the wait of a device ends, and draws from all that wait then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedloom.server.check_in_pace import CheckInRules, meetings, next_check_ins_s
from fedloom.server.engine import Opened, Round, RoundConfig, Select, Wake
from fedloom.strategies.selection.roster import Attendance, Roster

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Draw:
    """A round that has opened.

    Attributes:
        wanted_s: when it began to look for clients, virtual seconds.
        opened_s: when it opened.
        waiting: devices from which it drew.
        cohort: their names, in the order drawn.
    """

    wanted_s: float
    opened_s: float
    waiting: int
    cohort: Sequence[str]


@dataclass(slots=True)
class CheckInFleet:
    """Devices that check in, from the moment when all of them come for the first time.

    Args:
        names: of the devices, all different.
        rules: the settings of the server.
        seed: of the random numbers.
        spread_s: time in which the devices come first, evenly spread; 0 for a herd.
        outage_s: begin and end of a time in which the server cannot be reached.

    Attributes:
        now: virtual seconds until which the fleet was played.
        check_ins: of all devices so far.
        failed: attempts during the outage.
        per_minute: check-ins in each minute.
        draws: rounds that have opened.
    """

    names: Sequence[str]
    rules: CheckInRules
    seed: int = 1
    spread_s: float = 0.0
    outage_s: tuple[float, float] = (0.0, 0.0)
    now: float = field(default=0.0, init=False)
    check_ins: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    draws: list[Draw] = field(default_factory=list, init=False)
    _roster: Roster = field(init=False)
    _random: np.random.Generator = field(init=False)
    _due: Floats = field(init=False)
    _told: Floats = field(init=False)
    _waiting: Places = field(default_factory=lambda: np.empty(0, np.intp), init=False)
    _per_minute: list[NDArray[np.int64]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._roster = Roster(self.names)
        self._random = np.random.Generator(np.random.Philox(self.seed))
        self._due = self._random.random(len(self.names)) * self.spread_s
        self._told = np.full(len(self.names), self.rules.every_s)

    @property
    def per_minute(self) -> NDArray[np.int64]:
        """Check-ins in each minute that is over."""
        total = np.zeros(int(self.now // MINUTE_S), np.int64)
        for counts in self._per_minute:
            total[: len(counts)] += counts[: len(total)]
        return total

    def play(
        self,
        until_s: float,
        config: RoundConfig | None = None,
        select: Callable[[int], Select] | None = None,
        work_s: float = 60.0,
    ) -> None:
        """Play until a time, with rounds one after another.

        Args:
            until_s: virtual seconds, rounded up to a wait.
            config: of the rounds; None for no rounds.
            select: returns the draw of the round of a number.
            work_s: how long each member of a round works; then the next round begins to look.
        """
        wanted = 0 if config is None else max(config.needed, config.cohort_size)
        number = meetings(len(self.names), wanted, self.rules)
        looks_s = self.now
        while self.now < until_s:
            begin, end = self.now, self.now + self.rules.hold_s
            came = self._arrivals(end)
            if config is not None and select is not None:
                looks_s = self._draw(came, (begin, end), looks_s, (config, select, work_s, number))
            gone = self._waiting[self._due[self._waiting] < begin]  # not those that were drawn
            self._tell(gone, self._due[gone] + self.rules.hold_s, number)
            self._waiting, self.now = came[self._due[came] < end], end

    def _arrivals(self, end: float) -> Places:
        """Devices that come before this time; those that find no server draw another time."""
        begin, (down_s, up_s) = self.now, self.outage_s
        due = np.flatnonzero((self._due < end) & (self._due >= begin))
        while down_s < end and begin < up_s:
            lost = due[(self._due[due] >= down_s) & (self._due[due] < up_s)]
            if not len(lost):
                break
            self.failed += len(lost)
            self._due[lost] += self._told[lost] * self._random.random(len(lost))
            due = due[self._due[due] < end]
        self.check_ins += len(due)
        self._per_minute.append(np.bincount((self._due[due] // MINUTE_S).astype(np.int64)))
        return due

    def _draw(
        self,
        came: Places,
        slice_s: tuple[float, float],
        looks_s: float,
        rounds: tuple[RoundConfig, Callable[[int], Select], float, int],
    ) -> float:
        """Open the rounds of a slice; returns when the next one begins to look for clients."""
        (begin, end), (config, select, work_s, number) = slice_s, rounds
        hold_s = self.rules.hold_s
        while looks_s < end:
            there = np.concatenate([self._waiting, came])
            arrived = self._due[there]
            there, arrived = there[arrived < end], arrived[arrived < end]  # others were drawn
            ends = np.sort(arrived) + hold_s
            ends = ends[(ends >= max(looks_s, begin)) & (ends < end)]
            count = np.searchsorted(np.sort(arrived), ends, "right")
            count -= np.searchsorted(np.sort(arrived) + hold_s, ends, "left")
            enough = np.flatnonzero(count >= config.needed)
            if not len(enough):
                break
            at = float(ends[enough[0]])
            waits = there[(arrived <= at) & (arrived + hold_s >= at)]
            places = self._open(config, select(len(self.draws) + 1), looks_s, at, waits)
            looks_s = at + work_s
            self._tell(places, np.full(len(places), looks_s), number)
        return looks_s

    def _open(
        self, config: RoundConfig, select: Select, looks_s: float, at: float, waits: Places
    ) -> Places:
        idle = np.zeros(len(self.names), np.bool_)
        idle[waits] = True
        available = Attendance(self._roster, idle)
        engine = Round(config, select=select, now=at, available=available)
        [opened] = [e for e in engine.handle(Wake(), at) if isinstance(e, Opened)]
        cohort = list(opened.cohort)
        self.draws.append(Draw(looks_s, at, len(waits), cohort))
        return np.array([self._roster.place_of[name] for name in cohort], np.intp)

    def _tell(self, places: Places, now: Floats, number: int) -> None:
        """Tell devices when to come next."""
        first, second = self._random.random((2, len(places)))
        self._told[places] = next_check_ins_s(now, number, self.rules, first, second)
        self._due[places] = now + self._told[places]
