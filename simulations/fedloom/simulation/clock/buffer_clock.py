"""A buffer on the virtual clock: devices go on working while models are made from others' updates.

As with a round (`fedloom.simulation.clock.round_clock`) it is the server's engine that decides,
and nothing is trained: one buffer is played from who was at work when it opened to who is at work
when it is committed. What is between two buffers is a `Flight`, a value: it can be written to a
file, and a buffer that is played again from it, for an update that the door refuses, goes the same
way.

Invariants: those of a played round. A commit takes no virtual time, so the next buffer opens when
the last one closes. What differs from round to round (jitter, failure) is drawn for the round in
which a device is asked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop
from math import inf
from typing import Any

import numpy as np

from fedloom.server.engine import (
    Attended,
    Buffer,
    BufferConfig,
    BufferEvent,
    ClientFailed,
    Committed,
    MemberSnapshot,
    NextBuffer,
    Offer,
    OfferAccepted,
    Phase,
    RoundConfig,
    RoundEffect,
    RoundEngine,
    RoundState,
    Select,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    Withdraw,
)

from .devices import Load
from .round_clock import FAILS, LEAVES, REPORTS, Clock, Game, Opening, Play


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Who is at work between two buffers.

    Attributes:
        members: as the engine has them.
        due: (when, what, place in names) of what each of their devices does next, in order.
        left: place → (seconds, what) that is left of work that was interrupted, and its end.
    """

    members: Mapping[str, MemberSnapshot]
    due: tuple[tuple[float, int, int], ...]
    left: Mapping[int, tuple[float, int]]

    @property
    def origins(self) -> set[int]:
        """Rounds whose models they work on."""
        return {member.origin for member in self.members.values()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; its floats come back as they were."""
        members = [[n, s.origin, s.phase.value, s.grace_s] for n, s in self.members.items()]
        left = [[place, *what] for place, what in self.left.items()]
        return {"members": members, "due": self.due, "left": left}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Flight":
        """What `as_dict` gave."""
        return cls(
            members={n: MemberSnapshot(o, Phase(phase), s) for n, o, phase, s in values["members"]},
            due=tuple((at, what, place) for at, what, place in values["due"]),
            left={place: (seconds, what) for place, seconds, what in values["left"]},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPlay:
    """How a buffer went.

    Attributes:
        play: as of a round; `cohort` is everyone who was at work in it.
        origins: of the accepted updates, in the order of `play.places`.
        flight: who is at work now; None after it was abandoned, which ends everybody's work.
    """

    play: Play
    origins: tuple[int, ...]
    flight: Flight | None

    @property
    def updates(self) -> list[tuple[int, int]]:
        """(origin, place in names) of the accepted updates, in the order of acceptance."""
        return list(zip(self.origins, self.play.places, strict=True))


def play_buffer(
    clock: Clock,
    config: BufferConfig,
    *,
    select: Select,
    number: int,
    load: Load,
    flight: Flight | None,
    start_s: float = 0.0,
    refused: frozenset[tuple[int, int]] = frozenset(),
) -> BufferPlay:
    """Play a buffer; depends on its arguments alone.

    Args:
        clock: of the population.
        config: the knobs.
        select: draws who is asked.
        number: of the round that the buffer is.
        load: what a task of this round asks of each device.
        flight: who is at work from before; None for nobody: it begins to select.
        start_s: virtual seconds at which it begins.
        refused: (origin, place in names) of updates that the door is known to refuse.

    Raises:
        UsageError: as `Clock.play` does.
    """
    clock.check(config)
    if flight is None:
        opening = clock.opening(config, start_s)
    elif clock.devices is None or clock.devices.availability is None:
        opening = Opening(start_s, None, np.empty(0))
    else:
        opening = Opening(start_s, *clock.devices.availability.look(start_s))
    game = _Game(
        clock, config, select=select, number=number, load=load, opening=opening, flight=flight,
        refused=refused,
    )  # fmt: skip
    game.run()
    return game.result(start_s)


class _Game(Game):
    """One buffer while it is played."""

    def __init__(
        self,
        clock: Clock,
        config: BufferConfig,
        *,
        select: Select,
        number: int,
        load: Load,
        opening: Opening,
        flight: Flight | None,
        refused: frozenset[tuple[int, int]],
    ) -> None:
        self._number, self._flight, self._select = number, flight, select
        self._config = config
        self._refusals = refused
        self._buffer: Buffer
        super().__init__(
            clock, config, select=select, round_number=number, load=load, opening=opening,
            refused=frozenset(),
        )  # fmt: skip
        self._there = opening.there
        self._live: dict[int, int] = {}  # place → order of its entry in the heap that counts
        self._left: dict[int, tuple[float, int]] = {}
        self._origins: list[int] = []
        self._freed: list[str] = []
        if flight is not None:
            self._left.update(flight.left)
            for at_s, what, place in flight.due:
                self._push(at_s, what, place)

    def _begin(self, _: RoundConfig, select: Select, available: Iterable[str]) -> RoundEngine:
        if self._flight is None:
            self._buffer = Buffer(
                self._config, number=self._number, select=select, now=self._now,
                available=available,
            )  # fmt: skip
        else:
            self._buffer = Buffer.rebuild(
                self._config, number=self._number - 1, select=select, now=self._now,
                state=RoundState.COMMITTED, members=self._flight.members, available=available,
            )  # fmt: skip
        return self._buffer

    # ---- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Play until the buffer is committed or abandoned."""
        buffer, heap = self._buffer, self._heap
        if self._flight is None:
            self._say(Wake())
        else:
            self._say(NextBuffer(self._number, self._select))
        hungry, wake_at = self._settle()
        while buffer.state is RoundState.REPORTING:
            while heap and self._live.get(heap[0][3]) != heap[0][1]:
                heappop(heap)  # of a device that was told to stop
            next_at = heap[0][0] if heap else inf
            if hungry and self._idle is not None and self._idle.next_at <= min(next_at, wake_at):
                self._idle_moves(self._idle)
            elif next_at <= wake_at:
                self._now, _, what, place = heappop(heap)
                del self._live[place]
                self._sync()  # a report frees a place, for which somebody is drawn
                self._acts(what, place)
            else:
                self._now = wake_at
                self._sync()
                self._say(Wake())
            hungry, wake_at = self._settle()
        if buffer.state is RoundState.CLOSING:
            self._say(Committed())

    def _say(self, event: BufferEvent) -> None:
        """Tell the engine what happened and do what it asks for."""
        self._events += 1
        for effect in self._buffer.handle(event, self._now):
            self._do(effect)

    def _settle(self) -> tuple[bool, float]:
        while self._freed:
            self._say(Attended(self._freed.pop(0)))
        return super()._settle()

    def _hungry(self) -> bool:
        if self._idle is None or len(self._buffer.candidates):
            return False
        counts = self._buffer.cohort.counts()
        return counts[Phase.OFFERED] + counts[Phase.TRAINING] < self._config.concurrency

    # ---- devices at work -------------------------------------------------------------------------

    def _acts(self, what: int, place: int) -> None:
        name = self._names[place]
        if what == REPORTS:
            origin = self._buffer.origin(name)
            assert origin is not None
            if (origin, place) in self._refusals:
                self._say(UpdateRefused(name))
                return
            self._accepted.append(place)
            self._accepted_s.append(self._now)
            self._origins.append(origin)
            self._say(UpdateAccepted(name))
        elif what == FAILS:
            self._say(ClientFailed(name))
        else:
            super()._acts(what, place)

    def _do(self, effect: RoundEffect) -> None:
        if isinstance(effect, Offer):
            self._takes(effect)
        elif isinstance(effect, Withdraw) and self._buffer.state is RoundState.REPORTING:
            self._stops(effect.client)

    def _takes(self, offer: Offer) -> None:
        """A device takes the task, or what is left of it, or declines."""
        name, place = offer.client, self._place_of[offer.client]
        if offer.again:
            work_s, what = self._left.pop(place)
        elif self._declines is not None and self._declines.item(place):
            self._declining.append(name)
            return
        else:
            work_s, what = self._work_s.item(place), REPORTS
            if self._fails_at is not None and (part := self._fails_at.item(place)) < 1.0:
                work_s, what = work_s * part, FAILS
        self._say(OfferAccepted(name))
        ends_at = self._now + work_s
        if self._windows is not None and (leaves_at := self._next_change(place)) < ends_at:
            self._left[place] = ends_at - leaves_at, what
            ends_at, what = leaves_at, LEAVES
        self._push(ends_at, what, place)

    def _stops(self, name: str) -> None:
        """A device whose update would be too stale is idle at once, where it is there."""
        place = self._place_of[name]
        self._live.pop(place, None)
        self._left.pop(place, None)
        if self._there is None or self._there.item(place):
            self._freed.append(name)

    def _push(self, at_s: float, what: int, place: int) -> None:
        super()._push(at_s, what, place)
        self._live[place] = self._order

    # ---- the end ---------------------------------------------------------------------------------

    def result(self, start_s: float) -> BufferPlay:
        """How it went."""
        play = self.outcome(start_s)
        flight = self._at_work() if play.state is RoundState.COMMITTED else None
        return BufferPlay(play=play, origins=tuple(self._origins), flight=flight)

    def _at_work(self) -> Flight:
        members = self._buffer.snapshot(self._now)
        places = {self._place_of[name] for name in members}
        due = sorted(e for e in self._heap if e[3] in places and self._live.get(e[3]) == e[1])
        return Flight(
            members=members,
            due=tuple((at_s, what, place) for at_s, _, what, place in due),
            left={place: left for place, left in self._left.items() if place in places},
        )
