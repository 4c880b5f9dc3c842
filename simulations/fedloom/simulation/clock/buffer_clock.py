"""A buffer on the virtual clock: devices keep working while models are made from others' updates.

One buffer is played from the work in flight when it opens to the work in flight when it is
committed; nothing is trained. That state is a value, `Flight`: it can be written to a file, and a
buffer that is played again from it, for an update that is refused, goes the same way.

Invariants: those of a played round. A commit takes no virtual time, so the next buffer opens when
the last one closes. What differs from round to round (jitter, failure) is drawn for the round in
which a device is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedloom.server.engine import (
    Buffer,
    BufferConfig,
    MemberSnapshot,
    NextBuffer,
    Phase,
    RoundState,
    Select,
    Wake,
)

from .devices import Load
from .playback import Opening, Play, Playback
from .round_clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The work in flight between two buffers.

    Attributes:
        members: snapshots of the members at work.
        due: (when, what, place in names) of what each of their devices does next, in order.
        left: place → (seconds, what) that is left of work that was interrupted, and its end.
    """

    members: Mapping[str, MemberSnapshot]
    due: tuple[tuple[float, int, int], ...]
    left: Mapping[int, tuple[float, int]]

    @property
    def origins(self) -> set[int]:
        """Rounds whose models are worked on."""
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
        play: as of a round; its `cohort` is every client that was at work in it.
        origins: of the accepted updates, in the order of `play.places`.
        flight: work that continues; None after the buffer was abandoned, which ends all work.
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
        config: the settings.
        select: draws who is asked.
        number: of the round that the buffer is.
        load: what a task of this round asks of each device.
        flight: work from before; None for none: the buffer begins to select.
        start_s: virtual seconds at which it begins.
        refused: (origin, place in names) of updates that are known to be refused.

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
    available = clock.attendance(opening.there)
    if flight is None:
        engine = Buffer(config, number=number, select=select, now=opening.at_s, available=available)
    else:
        engine = Buffer.rebuild(
            config, number=number - 1, select=select, now=opening.at_s, available=available,
            state=RoundState.COMMITTED, members=flight.members,
        )  # fmt: skip
    played = clock.playback(engine, number=number, load=load, opening=opening, refused=refused)
    if flight is not None:
        played.continue_work(flight.due, flight.left)
    played.run(Wake() if flight is None else NextBuffer(number, select))
    play = played.outcome(start_s)
    committed = play.state is RoundState.COMMITTED
    after = _flight(engine, played) if committed else None
    return BufferPlay(play=play, origins=played.origins, flight=after)


def _flight(engine: Buffer, played: Playback) -> Flight:
    members = engine.snapshot(played.now)
    due, left = played.at_work(members.keys())
    return Flight(members=members, due=due, left=left)
