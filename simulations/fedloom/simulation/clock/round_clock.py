"""A round on a virtual clock: who is asked, who reports when, and how it ends, without training.

What a device computes does not depend on when it finishes, so a round is played first and only
those whose updates count are trained. It is played by the server's own engine: simulated devices
carry out what it asks for and tell it what they do, at the times that their speeds, bandwidths and
availability give. If an update turns out to be refused at the door, the round is played again
with that known.

A device that is offered the task declines, or takes it, downloads, trains and uploads. Going away
interrupts it: work done is kept, and it goes on where it was once it is back, if the round still
wants it. A device that fails gives up on the way. One that is withdrawn is idle at once.

Source: the loop is event scheduling with a future-event list, Law 2015, "Simulation Modeling and
Analysis", section 1.3, its list a binary heap of tuples.

Invariants: playing depends on its arguments alone. Time never goes back. What the engine is told
of the idle is right whenever it could draw from them or wait for them, and need not be otherwise:
with a hundred thousand devices and a cohort of a hundred, almost nobody's comings and goings
matter.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import (
    Attended,
    ClientFailed,
    Committed,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Opened,
    Phase,
    Round,
    RoundConfig,
    RoundEffect,
    RoundEngine,
    RoundEvent,
    RoundState,
    Select,
    UpdateAccepted,
    UpdateRefused,
    Wake,
)
from fedloom.strategies.selection.roster import Attendance, Roster

from .availability import Availability
from .device_random import Floats
from .devices import Devices, Load
from .idle_devices import Idle

REPORTS, FAILS, LEAVES, RETURNS = range(4)
"""What a member's device does next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How a round went. Times are virtual seconds.

    Attributes:
        state: COMMITTED or ABANDONED.
        reason: why it was abandoned.
        cohort: clients that were asked, in the order of joining.
        accepted: clients whose updates count, in the order of acceptance.
        places: of these among the names, in the same order.
        accepted_s: when each was accepted; empty without devices.
        counts: members in each phase, zeros included.
        phases: the phase of each member.
        offered_s: when each that took the task was first offered it; empty without devices.
        start_s: when the round began to select.
        opened_s: when enough devices were there and the cohort was asked.
        end_s: when it closed or was abandoned; None without devices.
        events: that the engine handled.
    """

    state: RoundState
    reason: str
    cohort: tuple[str, ...]
    accepted: tuple[str, ...]
    places: tuple[int, ...]
    accepted_s: tuple[float, ...]
    counts: Mapping[Phase, int]
    phases: Mapping[str, Phase]
    offered_s: Mapping[str, float]
    start_s: float
    opened_s: float
    end_s: float | None
    events: int


class Clock:
    """Plays rounds of one population.

    Args:
        names: of the clients, all different.
        devices: theirs, in the same order; None for rounds without time, in which everyone is
            available, takes the task and reports in the order of the cohort.

    Raises:
        UsageError: there are not as many devices as names.
    """

    def __init__(self, names: Sequence[str], devices: Devices | None = None) -> None:
        if devices is not None and len(devices) != len(names):
            raise UsageError(f"Expected {len(names)} devices, got {len(devices)}.")
        self.names = tuple(names)
        self.devices = devices
        self.place_of = {name: place for place, name in enumerate(self.names)}
        self._roster = Roster(self.names)
        self._sorted = np.array([self.place_of[name] for name in self._roster.names], np.intp)

    def play(
        self,
        config: RoundConfig,
        *,
        select: Select,
        round_number: int,
        load: Load,
        start_s: float = 0.0,
        refused: frozenset[str] = frozenset(),
        excluded: frozenset[str] = frozenset(),
    ) -> Play:
        """Play a round; depends on its arguments and the clock's own alone.

        Args:
            config: the five knobs.
            select: draws the cohort and its replacements.
            round_number: its number; what differs from round to round is drawn for it.
            load: what it asks of each device; not looked at without devices.
            start_s: virtual seconds at which it begins to select.
            refused: clients whose updates the door is known to refuse.
            excluded: clients that may not be asked.

        Raises:
            UsageError: the goal is larger than the population, more are asked than are wanted
                though nobody is slow, or so many devices are never there at once.
        """
        self.check(config)
        game = Game(
            self, config, select=select, round_number=round_number, load=load,
            opening=self.opening(config, start_s), refused=refused, excluded=excluded,
        )  # fmt: skip
        game.run()
        return game.outcome(start_s)

    def attendance(
        self, there: NDArray[np.bool_] | None, excluded: Collection[str] = ()
    ) -> Attendance:
        """Who may be asked.

        Args:
            there: who is there, in the order of the names; None for everybody.
            excluded: clients that may not be asked all the same.
        """
        idle = np.ones(len(self.names), np.bool_) if there is None else there[self._sorted]
        idle[[self._roster.place_of[name] for name in excluded if name in self.place_of]] = False
        return Attendance(self._roster, idle)

    def check(self, config: RoundConfig) -> None:
        """Refuse what no population of this size, or without devices, can do.

        Raises:
            UsageError: see `play`.
        """
        if config.goal > len(self.names):
            raise UsageError(
                f"Expected a goal of at most {len(self.names)} clients, which is all there are, "
                f"got {config.goal}."
            )
        if config.candidates > len(self.names):
            raise UsageError(
                f"Expected at most {len(self.names)} clients to be there before a round opens, "
                f"which is all there are, got {config.candidates}."
            )
        if self.devices is None and config.over_selection > 1:
            raise UsageError(
                f"Expected over_selection = 1 without devices, got {config.over_selection}: "
                "nobody is slow without device models. Add [devices], or leave it out."
            )

    def opening(self, config: RoundConfig, start_s: float) -> "Opening":
        """When so many are there as a round needs to open, and who.

        Raises:
            UsageError: so many are never there at once.
        """
        if self.devices is None or self.devices.availability is None:
            return Opening(start_s, None, np.empty(0))
        availability = self.devices.availability
        there, changes = availability.look(start_s)
        needed = max(config.goal, config.candidates)
        if there.sum() >= needed:
            return Opening(start_s, there, changes)
        at_s = availability.first_with(needed, start_s)
        if at_s is None:
            raise UsageError(
                f"Expected {needed} devices that are there at once some time after "
                f"{start_s:g} s, got fewer however long one waits. Lower the goal, or give devices "
                "more time in [devices.availability]."
            )
        return Opening(at_s, *availability.look(at_s))


@dataclass(frozen=True, slots=True)
class Opening:
    """The moment at which a round opens.

    Attributes:
        at_s: virtual seconds.
        there: who is there then; None for everybody, always.
        changes: when each comes or goes next.
    """

    at_s: float
    there: NDArray[np.bool_] | None
    changes: Floats


def play(
    config: RoundConfig,
    *,
    select: Select,
    names: Sequence[str],
    devices: Devices | None,
    round_number: int,
    load: Load,
    start_s: float = 0.0,
    refused: frozenset[str] = frozenset(),
) -> Play:
    """Play one round; a `Clock` saves looking up the names for each of many.

    Raises:
        UsageError: as `Clock` and `Clock.play` do.
    """
    return Clock(names, devices).play(
        config,
        select=select,
        round_number=round_number,
        load=load,
        start_s=start_s,
        refused=refused,
    )


class Game:
    """One round while it is played: the engine, the future-event list and the devices at work."""

    def __init__(
        self,
        clock: Clock,
        config: RoundConfig,
        *,
        select: Select,
        round_number: int,
        load: Load,
        opening: Opening,
        refused: frozenset[str],
        excluded: frozenset[str] = frozenset(),
    ) -> None:
        names, devices = clock.names, clock.devices
        self._names, self._place_of, self._refused = names, clock.place_of, refused
        self._timed = devices is not None
        self._now = self._opened_s = opening.at_s
        self._wanted = 0  # reports hoped for: the size of the first cohort
        self._events = 0
        self._heap: list[tuple[float, int, int, int]] = []  # time, order, what, place in names
        self._order = 0
        self._left_s: dict[int, float] = {}  # of work, where it was interrupted
        self._offered_s: dict[str, float] = {}
        self._accepted: list[int] = []
        self._accepted_s: list[float] = []
        self._declining: deque[str] = deque()
        self._idle: Idle | None = None
        self._first_changes = opening.changes
        self._windows: Availability | None = None
        if devices is None:
            self._work_s = np.zeros(len(names))
            self._declines = self._fails_at = None
        else:
            self._work_s = devices.work_seconds(load, round_number)
            self._declines = devices.declines(round_number)
            self._fails_at = devices.fails_at(round_number)
            self._windows = devices.availability
        if devices is not None and self._windows is not None and opening.there is not None:
            self._idle = Idle(
                self._windows,
                opening.there,
                opening.changes,
                turns=devices.turns(round_number),
                opened_s=opening.at_s,
                until_s=opening.at_s + config.deadline_s,
            )
        there = None if self._idle is None else opening.there
        self._round = self._begin(config, select, clock.attendance(there, excluded))
        self._members = self._round.cohort.phases  # a live view

    def _begin(self, config: RoundConfig, select: Select, available: Iterable[str]) -> RoundEngine:
        return Round(config, select=select, now=self._now, available=available)

    # ---- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Play until the round is closed and committed, or abandoned."""
        round_, heap = self._round, self._heap
        self._tell(Wake())
        hungry, wake_at = self._settle()
        while round_.state is RoundState.REPORTING:
            next_at = heap[0][0] if heap else inf
            if hungry and self._idle is not None and self._idle.next_at <= min(next_at, wake_at):
                self._idle_moves(self._idle)
            elif next_at <= wake_at:
                self._now, _, what, place = heappop(heap)
                if what == REPORTS and next_at < wake_at and self._counts(place):
                    continue
                self._sync()
                self._acts(what, place)
            else:
                self._now = wake_at
                self._sync()
                self._tell(Wake())
            hungry, wake_at = self._settle()
        if round_.state is RoundState.CLOSING:
            self._tell(Committed())

    def _counts(self, place: int) -> bool:
        """Tell of an update that counts; False when the door refuses it.

        It is apart because it is what most events are: an update that counts frees no place, so
        nobody is drawn, and the next wake-up does not come earlier.
        """
        name = self._names[place]
        if name in self._refused:
            return False
        self._accepted.append(place)
        self._accepted_s.append(self._now)
        self._events += 1
        for effect in self._round.handle(UpdateAccepted(name), self._now):
            self._do(effect)
        return True

    def _acts(self, what: int, place: int) -> None:
        name = self._names[place]
        if what == LEAVES:
            self._push(self._next_change(place), RETURNS, place)
            self._tell(Left(name))
        elif what == RETURNS:
            self._tell(Attended(name))
        elif what == FAILS:
            self._tell(ClientFailed(name))
        elif not self._counts(place):
            self._tell(UpdateRefused(name))

    def _tell(self, event: RoundEvent) -> None:
        """Tell the engine what happened and do what it asks for."""
        self._events += 1
        for effect in self._round.handle(event, self._now):
            self._do(effect)

    def _do(self, effect: RoundEffect) -> None:
        if isinstance(effect, Offer):
            self._offered(effect.client)
        elif isinstance(effect, Opened):
            self._wanted = len(effect.cohort)
        # A device whose task is withdrawn stops; what is still on the list of it is not looked at.

    def _settle(self) -> tuple[bool, float]:
        """Let those decline that do, and see what the round waits for now.

        Returns:
            Whether it takes the next device that comes, and when it is to be woken.
        """
        while self._declining:
            self._tell(OfferDeclined(self._declining.popleft()))
        at = self._round.wake_at
        return self._hungry(), inf if at is None else at

    # ---- devices at work ---------------------------------------------------------------------

    def _offered(self, name: str) -> None:
        """A device takes the task, or what is left of it, or declines."""
        place = self._place_of[name]
        if self._declines is not None and self._declines.item(place):
            self._declining.append(name)
            return
        now, what = self._now, REPORTS
        if self._timed:
            self._offered_s.setdefault(name, now)
        self._events += 1
        self._round.handle(OfferAccepted(name), now)
        ends_at = now + self._work_s.item(place)
        if self._fails_at is not None and (part := self._fails_at.item(place)) < 1.0:
            ends_at, what = now + self._work_s.item(place) * part, FAILS
        if place in self._left_s:
            ends_at = now + self._left_s.pop(place)
        if self._windows is not None and (leaves_at := self._next_change(place)) < ends_at:
            self._left_s[place] = ends_at - leaves_at
            ends_at, what = leaves_at, LEAVES
        self._push(ends_at, what, place)

    def _push(self, at_s: float, what: int, place: int) -> None:
        self._order += 1
        heappush(self._heap, (at_s, self._order, what, place))

    def _next_change(self, place: int) -> float:
        if self._windows is None:
            return inf
        if self._now == self._opened_s:  # the first cohort, for whom it was computed at once
            return self._first_changes.item(place)
        return self._windows.next_change(place, self._now)

    # ---- devices that are idle ---------------------------------------------------------------

    def _hungry(self) -> bool:
        """Does the round take the next device that comes? Then nobody's coming may be put off."""
        if self._idle is None or len(self._round.candidates):
            return False
        counts = self._round.cohort.counts()
        at_work = counts[Phase.OFFERED] + counts[Phase.TRAINING]
        return counts[Phase.REPORTED] + at_work < self._wanted

    def _sync(self) -> None:
        """Tell the engine who of the idle came and went by now, before it may draw from them."""
        if self._idle is not None:
            while self._idle.next_at <= self._now:
                self._idle_moves(self._idle)

    def _idle_moves(self, idle: Idle) -> None:
        at, place, comes = idle.pop()
        name = self._names[place]
        if name in self._members:
            return  # members' devices speak for themselves
        self._now = max(self._now, at)
        self._events += 1
        # Not at its own time: the engine does what is due by the time that it is told, and a
        # device that comes at the very deadline must not cut off an update of the same moment.
        for effect in self._round.handle(Attended(name) if comes else Left(name), -inf):
            self._do(effect)

    # ---- the end -----------------------------------------------------------------------------

    def outcome(self, start_s: float) -> Play:
        """How it went."""
        return Play(
            state=self._round.state,
            reason=self._round.reason,
            cohort=tuple(self._members),
            accepted=tuple(self._names[place] for place in self._accepted),
            places=tuple(self._accepted),
            accepted_s=tuple(self._accepted_s) if self._timed else (),
            counts=self._round.cohort.counts(),
            phases=self._members,
            offered_s=self._offered_s,
            start_s=start_s,
            opened_s=self._opened_s,
            end_s=self._now if self._timed else None,
            events=self._events,
        )
