"""A run's pace and the time left, from what its latest rounds really took.

A cycle is the work for one committed round: its own time, that of the rounds that were abandoned
before it, and the usual time between two rounds. Longer times between rounds are left out: an
operator's pause says nothing about the next rounds. The cycle that is not complete, with the age
of the open round, counts once it is longer than the others.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Protocol

from fedloom.server.metrics.meters import STOPPED

LOOKED_AT = 20
"""Latest rounds that determine the pace."""

FEW = 3
"""Committed rounds from which the pace is known well enough to state it."""

HOPELESS = 3
"""Abandoned rounds in a row after which nobody can say when the run ends."""

SURE = 0.25
"""Half of a range, as a part of its middle, up to which the middle alone says enough."""


class TimedRound(Protocol):
    """Kind, state and times of a round."""

    @property
    def kind(self) -> str: ...  # noqa: D102 - columns of the ledger
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def cause(self) -> str | None: ...  # noqa: D102
    @property
    def opened_at(self) -> float: ...  # noqa: D102
    @property
    def closed_at(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """The work for each committed round, in seconds.

    Attributes:
        complete: of the committed rounds, oldest first.
        current: since the last of them.
        abandoned: rounds that were abandoned since.
    """

    complete: tuple[float, ...] = ()
    current: float = 0.0
    abandoned: int = 0

    @property
    def samples(self) -> tuple[float, ...]:
        """The complete cycles, and the current one if it is longer than usual."""
        overdue = bool(self.complete) and self.current > mean(self.complete)
        return (*self.complete, self.current) if overdue else self.complete


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """Seconds until a run ends: expected, and a range of about one standard deviation."""

    expected_s: float
    low_s: float
    high_s: float

    @property
    def range_s(self) -> tuple[float, float] | None:
        """The range; None if the expected time says enough."""
        sure = self.high_s - self.low_s <= 2 * SURE * self.expected_s
        return None if sure else (self.low_s, self.high_s)


def cycles(rounds: Iterable[TimedRound], now: float) -> Cycles:
    """The cycles of the latest rounds, in any order; `now` is in seconds since the epoch."""
    ordered = sorted(rounds, key=lambda r: r.opened_at)[-LOOKED_AT:]
    timed = [r for r in ordered if r.cause != STOPPED]  # an operator aborted the others
    gaps = [b.opened_at - a.closed_at for a, b in pairwise(ordered) if a.closed_at is not None]
    gap = max(0.0, median(gaps)) if gaps else 0.0
    trains = any(r.kind == "train" for r in timed)
    complete: list[float] = []
    current, abandoned = 0.0, 0
    for each in timed:
        end = now if each.closed_at is None else each.closed_at
        current += max(0.0, end - each.opened_at) + (gap if current or complete else 0.0)
        abandoned += each.state == "abandoned"
        if each.state == "committed" and (each.kind == "train" or not trains):
            complete.append(current)
            current, abandoned = 0.0, 0
    return Cycles(complete=tuple(complete), current=current, abandoned=abandoned)


def rounds_an_hour(rounds: Sequence[TimedRound], now: float) -> float:
    """Committed rounds per hour at the current pace; 0 while there are fewer than `FEW`.

    >>> from types import SimpleNamespace
    >>> def done(opened_at, closed_at, state="committed"):
    ...     return SimpleNamespace(
    ...         kind="train", state=state, cause=None, opened_at=opened_at, closed_at=closed_at
    ...     )
    >>> rounds_an_hour([done(0.0, 9.0), done(10.0, 19.0), done(20.0, 29.0)], 30.0)
    372.4137931034483
    >>> rounds_an_hour([done(0.0, 9.0), done(10.0, 19.0)], 30.0)
    0.0
    """
    found = cycles(rounds, now)
    if len(found.complete) < FEW:
        return 0.0
    usual = mean(found.samples)
    return 3600.0 / usual if usual else 0.0


def time_left(
    rounds: Sequence[TimedRound], left: int, now: float, *, selects: bool = False
) -> TimeLeft | None:
    """The time until `left` more rounds are committed; None while nobody can say.

    With `selects` the run waits for clients: nobody can say after a usual cycle of it.

    The sum of `left` cycles of a mean m and standard deviation s, both estimated from n cycles, has
    the standard deviation s·√(left + left²/n). With few cycles s is at least m/√n.
    """
    found = cycles(rounds, now)
    samples, number = found.samples, len(found.complete)
    if not number or found.abandoned >= HOPELESS:
        return None
    usual = mean(samples)
    if selects and now - max(r.closed_at or now for r in rounds) > usual:
        return None
    spread = stdev(samples) if len(samples) > 1 else 0.0
    if number < FEW:
        spread = max(spread, usual / math.sqrt(number))
    expected = max(0.0, left * usual - min(found.current, usual)) if left > 0 else 0.0
    half = spread * math.sqrt(left + left * left / len(samples)) if left > 0 else 0.0
    return TimeLeft(expected_s=expected, low_s=max(0.0, expected - half), high_s=expected + half)
