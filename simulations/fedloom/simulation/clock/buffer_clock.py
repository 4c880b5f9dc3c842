"""A buffer on the virtual clock: devices continue to work while models are committed.

A buffer is played from the work in flight at its opening to the work in flight at its commit;
nothing is trained. That state is a value, `Flight`: it can be stored, and a buffer that is played
again from it, after a refused update, is the same up to the refusal.

Invariants: those of a played round. A commit takes no virtual time, so the next buffer opens when
the last one closes. Jitter and failure are drawn for the round in which a device gets the task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from .playback import Play, Playback
from .round_clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The work in flight between two buffers.

    Attributes:
        members: snapshots of the members at work.
        due: (time, event, index in names) of the next event of each device, in order.
        left: index → (seconds, event): remaining work of interrupted devices, and its end.
    """

    members: Mapping[str, MemberSnapshot]
    due: tuple[tuple[float, int, int], ...]
    left: Mapping[int, tuple[float, int]]

    @property
    def origins(self) -> set[int]:
        """Rounds whose models are being trained."""
        return {member.origin for member in self.members.values()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; floats are exact."""
        members = [[n, s.origin, s.phase.value, s.grace_s] for n, s in self.members.items()]
        left = [[place, *what] for place, what in self.left.items()]
        return {"members": members, "due": self.due, "left": left}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Flight":
        """The inverse of `as_dict`."""
        return cls(
            members={n: MemberSnapshot(o, Phase(phase), s) for n, o, phase, s in values["members"]},
            due=tuple((at, what, place) for at, what, place in values["due"]),
            left={place: (seconds, what) for place, seconds, what in values["left"]},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPlay:
    """A played buffer.

    Attributes:
        play: as of a round; its `cohort` is every client that worked in it.
        origins: of the accepted updates, in the order of `play.places`.
        flight: work that continues; None if the buffer was abandoned, which ends all work.
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
    """Play a buffer; depends only on its arguments.

    Args:
        clock: of the population.
        config: the settings.
        select: selects clients.
        number: of the buffer's round.
        load: of each device for a task of this round.
        flight: work in flight; None for none.
        start_s: virtual seconds at which it begins.
        refused: (origin, index in names) of updates known to be refused.

    Raises:
        UsageError: as `Clock.play` does.
    """
    clock.check(config)
    opening = clock.opening_at(start_s) if flight else clock.opening(config, start_s)
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
