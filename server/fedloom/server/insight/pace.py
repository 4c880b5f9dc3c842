"""A run's pace and the time left."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Protocol

LOOKED_AT = 20
"""Latest rounds that determine the pace."""


class TimedRound(Protocol):
    """Kind, state and times of a round."""

    @property
    def kind(self) -> str: ...  # noqa: D102 - columns of the ledger
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def opened_at(self) -> float: ...  # noqa: D102
    @property
    def closed_at(self) -> float | None: ...  # noqa: D102


def ends(rounds: Iterable[TimedRound]) -> list[float]:
    """Times at which the latest committed training rounds ended, ascending."""
    done = (r for r in rounds if (r.kind, r.state) == ("train", "committed"))
    return sorted(r.closed_at for r in done if r.closed_at is not None)[-LOOKED_AT:]


def seconds_a_round(rounds: Sequence[TimedRound]) -> float | None:
    """Median seconds from one committed round to the next; None before the first.

    >>> from functools import partial
    >>> from types import SimpleNamespace
    >>> done = partial(SimpleNamespace, kind="train", state="committed", opened_at=0.0)
    >>> seconds_a_round([done(closed_at=t) for t in (10.0, 20.0, 30.0, 90.0)])
    10.0
    """
    found = ends(rounds)
    if len(found) > 1:
        return median(b - a for a, b in pairwise(found))
    times = (
        r.closed_at - r.opened_at
        for r in rounds
        if r.state == "committed" and r.closed_at is not None
    )
    return next(times, None)


def rounds_an_hour(rounds: Sequence[TimedRound], now: float) -> float:
    """Committed rounds per hour at the current pace, lower if the next round is overdue.

    >>> from functools import partial
    >>> from types import SimpleNamespace
    >>> done = partial(SimpleNamespace, kind="train", state="committed", opened_at=0.0)
    >>> rounds_an_hour([done(closed_at=t) for t in (10.0, 20.0, 30.0)], 30.0)
    360.0
    """
    pace, found = seconds_a_round(rounds), ends(rounds)
    if not pace or not found:
        return 0.0
    return 3600.0 / max(pace, now - found[-1])


def time_left_s(rounds: Sequence[TimedRound], left: int) -> float | None:
    """Seconds until `left` more rounds are committed; None while the pace is unknown."""
    pace = seconds_a_round(rounds)
    return None if pace is None else pace * max(0, left)
