"""A round while it is played: the engine, the list of future events and the devices at work.

The server's engine decides. Simulated devices do their tasks and report at times that follow from
their speeds, bandwidths and availability. A buffer is played like a round, but starts with devices
that are already at work.

A device declines an offer, or accepts it, downloads, trains and uploads. If it leaves, its work is
interrupted and continues when it returns, if the round still needs it. A device may fail during its
work. A device whose task is withdrawn is idle at once.

Source: the loop is event scheduling, Law 2015, "Simulation Modeling and Analysis", section 1.3.

Invariants: time never decreases. The engine is informed of idle devices only when it may select
from them or waits for one: with a hundred thousand devices and a cohort of a hundred, hardly any
arrival or departure matters.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from math import inf
from typing import TypeAlias, cast

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
    OfferDeclined,
    Opened,
    Phase,
    Round,
    RoundEffect,
    RoundEvent,
    RoundState,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    Withdraw,
    bears,
    decline_all,
    is_calm,
    replace,
)
from fedloom.strategies.selection import Candidates
from fedloom.strategies.selection.roster import Roster

from .availability import Availability
from .device_random import Floats
from .devices import Devices, Load
from .future_events import FAILS, LEAVES, REPORTS, RETURNS, FutureEvents
from .idle_devices import IdleDevices
from .work_times import Of, WorkTimes

Fate: TypeAlias = tuple[bool, float, float | None]
"""Of an offer to a device: whether it declines, the share of its work after which it fails or
infinity, and the seconds of its work, None if they are expensive to know."""


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
        roster: of the clients.
        ranks: of each client in the roster.
        by_rank: the index of each client of the roster.
        number: of the round.
        load: of each device for its task; not needed without devices.
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
        roster: Roster,
        ranks: NDArray[np.intp],
        by_rank: NDArray[np.intp],
        number: int,
        load: Load | None,
        opening: Opening,
        refused: AbstractSet[tuple[int, int]],
    ) -> None:
        self._names, self._place_of, self._refused = names, place_of, refused
        self._roster, self._by_rank = roster, by_rank
        self._engine, self._number, self._there = engine, number, opening.there
        self._members = engine.cohort.phases  # a live view
        self._frees_places = isinstance(engine, Buffer)  # a report frees a place for another client
        self._timed = devices is not None
        self._now = self._opened_s = opening.at_s
        self._events = 0
        self._future = FutureEvents([place for origin, place in refused if origin == number])
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
        self._declines: Of | None = None
        self._fails_at: Of | None = None
        if devices is not None:
            assert load is not None
            self._work = devices.work_times(load, number)
            self._declines = devices.declines(number)
            self._fails_at = devices.fails_at(number)
            self._windows = devices.availability
        self._known: dict[int, Fate] = {}
        if devices is not None and self._windows is not None and opening.there is not None:
            self._idle = IdleDevices(
                self._windows,
                opening.there,
                opening.changes,
                turns=partial(devices.turns, number),
                ranks=ranks,
                opened_s=opening.at_s,
                until_s=opening.at_s + engine.config.deadline_s,
            )

    def continue_work(
        self, due: Sequence[tuple[float, int, int]], left: Mapping[int, tuple[float, int]]
    ) -> None:
        """Start with devices at work; the arguments are as returned by `at_work`."""
        self._left.update(left)
        for at_s, what, place in due:
            self._future.add(at_s, what, place)

    # ---- the loop ----------------------------------------------------------------------------

    def run(self, first: BufferEvent) -> None:
        """Play until the round is committed or abandoned.

        Args:
            first: the event that opens it.
        """
        engine, future = self._engine, self._future
        self._feed(first)
        if self._idle is not None and self._frees_places:
            for name in self._members:
                self._asked(name)
        hungry, wake_at = self._settle()
        while engine.state is RoundState.REPORTING:
            next_at, _, what, place = future.peek()
            if hungry and self._idle is not None and self._idle.next_at <= min(next_at, wake_at):
                self._move_idle(self._idle)
            elif next_at <= wake_at:
                if what == REPORTS and self._count_reports(wake_at, hungry):
                    continue
                future.pop()
                self._now = next_at
                if self._is_quick(what, place, next_at < wake_at):
                    continue
            else:
                self._now = wake_at
                self._sync()
                self._feed(Wake())
            hungry, wake_at = self._settle()
        if engine.state is RoundState.CLOSING:
            self._feed(Committed())

    def _is_quick(self, what: int, place: int, before_wake_up: bool) -> bool:
        """Perform an event; True if no client is to be selected, and the next wake-up stays."""
        # Most events are updates that count, which free no place in a round.
        quick = what == REPORTS and before_wake_up and not self._frees_places
        if quick and self._counts(place):
            return True
        calm = self._sync()
        if what == FAILS and self._is_replaced(place):
            return calm and not self._declining
        self._act(what, place)
        return False

    def _count_reports(self, before: float, hungry: bool) -> bool:
        """Count the updates that come before anything else can happen; False for none."""
        engine = self._engine
        if (spare := engine.spare_reports) <= 0:
            return False
        before = min(before, engine.clock.check_at)
        if hungry and self._idle is not None:
            before = min(before, self._idle.next_at)
        places, times = self._future.pop_reports(before, spare)
        if not places:
            return False
        self._now = times[-1]
        self._events += len(places)
        self._accepted += places
        self._accepted_s += times
        self._origins += [self._number] * len(places)
        names = self._names
        engine.report_all([names[place] for place in places], self._now)
        return True

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

    def _is_replaced(self, place: int) -> bool:
        """A device fails and others take its task or decline; False if more can happen."""
        name = replace(self._engine, self._names[place], Phase.FAILED, self._now)
        if name is None:
            return False
        self._events += 1
        place = self._asked(name)
        while self._fate(place)[0]:
            other = replace(self._engine, name, Phase.DECLINED, self._now)
            if other is None:
                self._declining.append(name)
                return True
            self._events += 1
            name, place = other, self._asked(other)
        self._events += 1
        self._begin(place, *self._accept(name, place))
        return True

    def _act(self, what: int, place: int) -> None:
        name = self._names[place]
        if what == LEAVES:
            self._future.add(self._next_change(place), RETURNS, place)
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
        effects = self._engine.handle(cast(RoundEvent, event), self._now)
        if effects and isinstance(opened := effects[0], Opened):
            drawn = opened.cohort
            # A lookup by name takes 1 µs in a large population, by place a hundredth.
            places = self._by_rank[drawn.places] if isinstance(drawn, Candidates) else None
            effects = self._take_all(effects, places)
        for effect in effects:
            self._perform(effect)

    def _decline_all(self) -> None:
        clients = list(self._declining)
        self._declining.clear()
        self._events += len(clients)
        for effect in self._take_all(decline_all(self._engine, clients, self._now)):
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
        while count := len(self._declining):
            if count > 1 and bears(self._engine, count, self._now):
                self._decline_all()
            else:
                self._feed(OfferDeclined(self._declining.popleft()))
        at = self._engine.wake_at
        return self._hungry(), inf if at is None else at

    # ---- devices at work ---------------------------------------------------------------------

    def _take(self, offer: Offer) -> None:
        """A device accepts the task, continues it, or declines."""
        name, place = offer.client, self._asked(offer.client)
        if offer.again:
            task = self._left.pop(place)
        elif self._fate(place)[0]:
            self._declining.append(name)
            return
        else:
            task = self._accept(name, place)
        self._start([name])
        self._begin(place, *task)

    def _asked(self, name: str) -> int:
        """The index of a client with an offer: what its device does are events from now on."""
        place = self._place_of[name]
        if self._idle is not None:
            self._idle.leave_out(place)
        return place

    def _accept(self, name: str, place: int) -> tuple[float, int]:
        """A device accepts the task: its seconds of work, and how it ends."""
        if self._timed and not self._frees_places:
            self._offered_s.setdefault(name, self._now)
        _, part, work_s = self._fate(place)
        if self._work is not None and (work_s is None or place in self._took):
            work_s = self._work.seconds(place, has_files=place in self._took)
        assert work_s is not None
        self._took[place] = None
        return (work_s * part, FAILS) if part < 1.0 else (work_s, REPORTS)

    def _fate(self, place: int) -> Fate:
        """What an offer to this device leads to.

        Computed with those of devices that are likely to be asked next: ten take the time of one.
        """
        if place not in self._known:
            places = [place, *(self._place_of[name] for name in self._engine.candidates.ahead)]
            self._known = dict(zip(places, self._fates(np.array(places)), strict=True))
        return self._known[place]

    def _fates(self, places: NDArray[np.intp]) -> Iterator[Fate]:
        count, work = len(places), self._work
        declines: Iterable[bool] = repeat(False, count)
        parts: Iterable[float] = repeat(inf, count)
        seconds: Iterable[float | None] = repeat(0.0 if work is None else None, count)
        if self._declines is not None:
            declines = self._declines(places).tolist()
        if self._fails_at is not None:
            parts = self._fails_at(places).tolist()
        if work is not None and work.is_cheap:
            seconds = work.of(places).tolist()
        return zip(declines, parts, seconds, strict=True)

    def _begin(self, place: int, work_s: float, what: int) -> None:
        """A device works until it has done so, or leaves."""
        ends_at = self._now + work_s
        if self._windows is not None and (leaves_at := self._next_change(place)) < ends_at:
            self._left[place] = ends_at - leaves_at, what
            ends_at, what = leaves_at, LEAVES
        self._future.add(ends_at, what, place)

    def _start(self, names: Sequence[str]) -> None:
        self._events += len(names)
        for effect in self._engine.start_all(names, self._now):
            self._perform(effect)

    def _take_all(
        self, effects: Sequence[RoundEffect], places: NDArray[np.intp] | None = None
    ) -> list[RoundEffect]:
        """Perform the offers among these effects, all to devices without files.

        Args:
            effects: of the engine.
            places: indices of the devices with offers, in this order, if known.

        Returns:
            The other effects.
        """
        names = [effect.client for effect in effects if isinstance(effect, Offer)]
        if places is None:
            places = np.array([self._place_of[name] for name in names], np.intp)
        if self._idle is not None:
            self._idle.leave_out_all(places)
        if self._declines is not None:
            declines = self._declines(places)
            self._declining += [names[n] for n in np.flatnonzero(declines).tolist()]
            names = [names[n] for n in np.flatnonzero(~declines).tolist()]
            places = places[~declines]
        work_s = np.zeros(len(places)) if self._work is None else self._work.of(places)
        what = np.full(len(places), REPORTS)
        if self._fails_at is not None:
            part = self._fails_at(places)
            fails = part < 1.0
            work_s[fails] *= part[fails]
            what[fails] = FAILS
        taken = places.tolist()
        self._took.update(dict.fromkeys(taken))
        if self._timed and not self._frees_places:
            self._offered_s.update(dict.fromkeys(names, self._now))
        self._start(names)
        ends_at = self._now + work_s
        if self._windows is not None:
            leaves_at = self._first_changes[places]
            for n in np.flatnonzero(leaves_at <= self._now).tolist():
                leaves_at[n] = self._windows.next_change(taken[n], self._now)
            leaves = leaves_at < ends_at
            for n in np.flatnonzero(leaves).tolist():
                self._left[taken[n]] = (ends_at - leaves_at).item(n), what.item(n)
            ends_at = np.where(leaves, leaves_at, ends_at)
            what[leaves] = LEAVES
        self._future.add_all(ends_at, what, places)
        return [effect for effect in effects if not isinstance(effect, Offer)]

    def _stop(self, name: str) -> None:
        """A device whose update would be too stale is idle at once, if available."""
        place = self._place_of[name]
        self._future.withdraw(place)
        self._left.pop(place, None)
        if self._there is None or self._there.item(place):
            self._freed.append(name)

    def _next_change(self, place: int) -> float:
        if self._windows is None:
            return inf
        if (first := self._first_changes.item(place)) > self._now:
            return first
        return self._windows.next_change(place, self._now)

    # ---- devices that are idle ---------------------------------------------------------------

    def _hungry(self) -> bool:
        """Whether the round takes the next arriving device, so arrivals must not be delayed."""
        return self._idle is not None and not self._engine.candidates and self._engine.free > 0

    def _sync(self) -> bool:
        """Inform the engine of idle devices until now, before it may select from them.

        Returns:
            Whether the engine decided nothing, so that its next wake-up stays.
        """
        idle = self._idle
        if idle is None or idle.next_at > self._now:
            return True
        if is_calm(self._engine):
            moves = idle.until(self._now)
            self._engine.candidates.follow(moves)
            self._events += len(moves)
            return True
        while idle.next_at <= self._now:
            self._move_idle(idle)
        return False

    def _move_idle(self, idle: IdleDevices) -> None:
        at, rank, comes = idle.pop()
        name = self._roster.names[rank]
        if name in self._members:
            return  # the events of members are in the heap
        self._now = max(self._now, at)
        self._events += 1
        # Not at the time of a deadline: the engine acts on deadlines up to an event's time, and a
        # device that arrives at one must not exclude an update of the same time.
        due = self._engine.wake_at
        now = at if due is None or at < due else -inf
        for effect in self._engine.handle(Attended(name) if comes else Left(name), now):
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
        due = tuple((e[0], e[2], e[3]) for e in self._future.all() if e[3] in places)
        left = {place: left for place, left in self._left.items() if place in places}
        return due, left
