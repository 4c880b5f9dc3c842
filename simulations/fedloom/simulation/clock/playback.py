"""A round while it is played: the engine, the list of future events and the devices at work.

The server's engine decides. Simulated devices do their tasks and report at times that follow from
their speeds, bandwidths and availability. A buffer is played like a round, but starts with devices
that are already at work.

A device declines an offer, or accepts it, downloads, trains and uploads. If it leaves, its work is
interrupted and continues when it returns, if the round still needs it. A device may fail during its
work. A device whose task is withdrawn is idle at once.

Source: the loop is event scheduling with a future-event list, Law 2015, "Simulation Modeling and
Analysis", section 1.3, its list a binary heap of tuples.

Invariants: time never decreases. The engine is informed of idle devices only when it may select
from them or waits for one: with a hundred thousand devices and a cohort of a hundred, hardly any
arrival or departure matters.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedloom.server.engine import (
    Attended,
    Buffer,
    BufferEvent,
    ClientFailed,
    Committed,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Phase,
    Round,
    RoundEffect,
    RoundEvent,
    RoundState,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    Withdraw,
)

from .availability import Availability
from .device_random import Floats
from .devices import Devices, Load, WorkTimes
from .idle_devices import IdleDevices

REPORTS, FAILS, LEAVES, RETURNS = range(4)
"""The next event of a member's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A played round. Times are virtual seconds.

    Attributes:
        state: COMMITTED or ABANDONED.
        reason: why it was abandoned.
        cohort: clients that got the task, in the order of joining.
        accepted: clients whose updates count, in the order of acceptance.
        places: indices of the accepted clients in the names, in the same order.
        accepted_s: times of acceptance; empty without devices.
        refused: (round, index) of the tasks whose updates came and were refused.
        took: indices of the clients that accepted the task in this round and downloaded its files.
        counts: members in each phase, zeros included.
        phases: the phase of each member.
        offered_s: time of the first offer of each client that accepted it; empty without devices.
        start_s: when the round began to select.
        opened_s: when enough devices were available and the cohort was selected.
        end_s: when it closed or was abandoned; None without devices.
        events: number of events that the engine handled.
    """

    state: RoundState
    reason: str
    cohort: tuple[str, ...]
    accepted: tuple[str, ...]
    places: tuple[int, ...]
    accepted_s: tuple[float, ...]
    refused: tuple[tuple[int, int], ...]
    took: tuple[int, ...]
    counts: Mapping[Phase, int]
    phases: Mapping[str, Phase]
    offered_s: Mapping[str, float]
    start_s: float
    opened_s: float
    end_s: float | None
    events: int


@dataclass(frozen=True, slots=True)
class Opening:
    """The opening of a round.

    Attributes:
        at_s: virtual seconds.
        there: whether each device is available then; None if all always are.
        changes: next change of each device.
    """

    at_s: float
    there: NDArray[np.bool_] | None
    changes: Floats


class Playback:
    """Plays one round or buffer.

    Args:
        names: of the clients.
        place_of: index of each name.
        devices: of the clients; None for a round without time.
        engine: that has handled no event yet.
        number: of the round.
        load: of each device for its task.
        opening: of the round.
        refused: (round, index) of updates known to be refused.
    """

    def __init__(
        self,
        names: Sequence[str],
        place_of: Mapping[str, int],
        devices: Devices | None,
        engine: Round | Buffer,
        *,
        number: int,
        load: Load,
        opening: Opening,
        refused: AbstractSet[tuple[int, int]],
    ) -> None:
        self._names, self._place_of, self._refused = names, place_of, refused
        self._engine, self._number, self._there = engine, number, opening.there
        self._members = engine.cohort.phases  # a live view
        self._frees_places = isinstance(engine, Buffer)  # a report frees a place for another client
        self._timed = devices is not None
        self._now = self._opened_s = opening.at_s
        self._events = 0
        self._heap: list[tuple[float, int, int, int]] = []  # time, order, event, index in names
        self._order = 0
        self._live: dict[int, int] = {}  # index → order of its valid entry in the heap
        self._left: dict[int, tuple[float, int]] = {}  # index → seconds of work left, and its end
        self._offered_s: dict[str, float] = {}
        self._accepted: list[int] = []
        self._accepted_s: list[float] = []
        self._origins: list[int] = []
        self._came_refused: list[tuple[int, int]] = []
        self._declining: deque[str] = deque()
        self._freed: deque[str] = deque()
        self._idle: IdleDevices | None = None
        self._first_changes = opening.changes
        self._windows: Availability | None = None
        self._took: dict[int, None] = {}  # indices, in the order of acceptance
        self._work: WorkTimes | None = None
        if devices is None:
            self._declines = self._fails_at = None
        else:
            self._work = devices.work_times(load, number)
            self._declines = devices.declines(number)
            self._fails_at = devices.fails_at(number)
            self._windows = devices.availability
        if devices is not None and self._windows is not None and opening.there is not None:
            self._idle = IdleDevices(
                self._windows,
                opening.there,
                opening.changes,
                turns=devices.turns(number),
                opened_s=opening.at_s,
                until_s=opening.at_s + engine.config.deadline_s,
            )

    def continue_work(
        self, due: Sequence[tuple[float, int, int]], left: Mapping[int, tuple[float, int]]
    ) -> None:
        """Start with devices at work; the arguments are as returned by `at_work`."""
        self._left.update(left)
        for at_s, what, place in due:
            self._push(at_s, what, place)

    # ---- the loop ----------------------------------------------------------------------------

    def run(self, first: BufferEvent) -> None:
        """Play until the round is committed or abandoned.

        Args:
            first: the event that opens it.
        """
        engine, heap, live = self._engine, self._heap, self._live
        self._feed(first)
        hungry, wake_at = self._settle()
        while engine.state is RoundState.REPORTING:
            while heap and live.get(heap[0][3]) != heap[0][1]:
                heappop(heap)  # of a device whose task was withdrawn
            next_at = heap[0][0] if heap else inf
            if hungry and self._idle is not None and self._idle.next_at <= min(next_at, wake_at):
                self._move_idle(self._idle)
            elif next_at <= wake_at:
                self._now, _, what, place = heappop(heap)
                del live[place]
                # Most events are updates that count. In a round they free no place, so no client
                # is selected, and the next wake-up stays the same.
                quick = what == REPORTS and not self._frees_places and next_at < wake_at
                if quick and self._counts(place):
                    continue
                self._sync()
                self._act(what, place)
            else:
                self._now = wake_at
                self._sync()
                self._feed(Wake())
            hungry, wake_at = self._settle()
        if engine.state is RoundState.CLOSING:
            self._feed(Committed())

    def _counts(self, place: int) -> bool:
        """Feed an update that counts; False if it is known to be refused."""
        name = self._names[place]
        origin = self._engine.origin(name) or self._number
        if (origin, place) in self._refused:
            return False
        self._accepted.append(place)
        self._accepted_s.append(self._now)
        self._origins.append(origin)
        self._feed(UpdateAccepted(name))
        return True

    def _act(self, what: int, place: int) -> None:
        name = self._names[place]
        if what == LEAVES:
            self._push(self._next_change(place), RETURNS, place)
            self._feed(Left(name))
        elif what == RETURNS:
            self._feed(Attended(name))
        elif what == FAILS:
            self._feed(ClientFailed(name))
        elif not self._counts(place):
            self._came_refused.append((self._engine.origin(name) or self._number, place))
            self._feed(UpdateRefused(name))

    def _feed(self, event: BufferEvent) -> None:
        """Pass an event to the engine, and perform its effects."""
        self._events += 1
        for effect in self._engine.handle(cast(RoundEvent, event), self._now):
            self._perform(effect)

    def _perform(self, effect: RoundEffect) -> None:
        if isinstance(effect, Offer):
            self._take(effect)
        elif isinstance(effect, Withdraw) and self._engine.state is RoundState.REPORTING:
            self._stop(effect.client)

    def _settle(self) -> tuple[bool, float]:
        """Let freed devices attend and others decline.

        Returns:
            Whether the round takes the next device that arrives, and its wake-up time.
        """
        while self._freed:
            self._feed(Attended(self._freed.popleft()))
        while self._declining:
            self._feed(OfferDeclined(self._declining.popleft()))
        at = self._engine.wake_at
        return self._hungry(), inf if at is None else at

    # ---- devices at work ---------------------------------------------------------------------

    def _take(self, offer: Offer) -> None:
        """A device accepts the task, continues it, or declines."""
        name, place = offer.client, self._place_of[offer.client]
        if offer.again:
            work_s, what = self._left.pop(place)
        elif self._declines is not None and self._declines.item(place):
            self._declining.append(name)
            return
        else:
            work_s, what = 0.0, REPORTS
            if self._work is not None:
                work_s = self._work.seconds(place, has_files=place in self._took)
            self._took[place] = None
            if self._fails_at is not None and (part := self._fails_at.item(place)) < 1.0:
                work_s, what = work_s * part, FAILS
        if self._timed and offer.origin is None:
            self._offered_s.setdefault(name, self._now)
        self._feed(OfferAccepted(name))
        ends_at = self._now + work_s
        if self._windows is not None and (leaves_at := self._next_change(place)) < ends_at:
            self._left[place] = ends_at - leaves_at, what
            ends_at, what = leaves_at, LEAVES
        self._push(ends_at, what, place)

    def _stop(self, name: str) -> None:
        """A device whose update would be too stale is idle at once, if available."""
        place = self._place_of[name]
        self._live.pop(place, None)
        self._left.pop(place, None)
        if self._there is None or self._there.item(place):
            self._freed.append(name)

    def _push(self, at_s: float, what: int, place: int) -> None:
        self._order += 1
        self._live[place] = self._order
        heappush(self._heap, (at_s, self._order, what, place))

    def _next_change(self, place: int) -> float:
        if self._windows is None:
            return inf
        if self._now == self._opened_s:  # computed for all devices at the opening
            return self._first_changes.item(place)
        return self._windows.next_change(place, self._now)

    # ---- devices that are idle ---------------------------------------------------------------

    def _hungry(self) -> bool:
        """Whether the round takes the next arriving device, so arrivals must not be delayed."""
        return self._idle is not None and not self._engine.candidates and self._engine.free > 0

    def _sync(self) -> None:
        """Inform the engine of idle devices until now, before it may select from them."""
        if self._idle is not None:
            while self._idle.next_at <= self._now:
                self._move_idle(self._idle)

    def _move_idle(self, idle: IdleDevices) -> None:
        at, place, comes = idle.pop()
        name = self._names[place]
        if name in self._members:
            return  # the events of members are in the heap
        self._now = max(self._now, at)
        self._events += 1
        # Not at the event's time: the engine acts on deadlines up to that time, and a device that
        # arrives at the deadline must not exclude an update of the same time.
        for effect in self._engine.handle(Attended(name) if comes else Left(name), -inf):
            self._perform(effect)

    # ---- the end -----------------------------------------------------------------------------

    def outcome(self, start_s: float) -> Play:
        """The played round."""
        return Play(
            state=self._engine.state,
            reason=self._engine.reason,
            cohort=tuple(self._members),
            accepted=tuple(self._names[place] for place in self._accepted),
            places=tuple(self._accepted),
            accepted_s=tuple(self._accepted_s) if self._timed else (),
            refused=tuple(self._came_refused),
            took=tuple(self._took),
            counts=self._engine.cohort.counts(),
            phases=self._members,
            offered_s=self._offered_s,
            start_s=start_s,
            opened_s=self._opened_s,
            end_s=self._now if self._timed else None,
            events=self._events,
        )

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    @property
    def origins(self) -> tuple[int, ...]:
        """The rounds of the accepted clients' tasks, in the order of acceptance."""
        return tuple(self._origins)

    def at_work(
        self, members: AbstractSet[str]
    ) -> tuple[tuple[tuple[float, int, int], ...], dict[int, tuple[float, int]]]:
        """The next events of these members' devices, and the rest of interrupted work."""
        places = {self._place_of[name] for name in members}
        due = sorted(e for e in self._heap if e[3] in places and self._live.get(e[3]) == e[1])
        left = {place: left for place, left in self._left.items() if place in places}
        return tuple((at_s, what, place) for at_s, _, what, place in due), left
