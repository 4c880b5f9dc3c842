"""How long sums took from the close of their rounds to the parent, and the time left for the next.

A site's deadline is the parent's less this margin: twice the longest of the last few times, so that
a slower upload still arrives, but never more than half of the time that there is. Of rounds with
masking sessions the time counts from their opening, so these have times of their own.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

Sent: TypeAlias = tuple[float, int]
"""Seconds from the close of a round to the parent's acknowledgement, and bytes of its model."""

FIRST: Final = 0.1
"""Share of the time that is left for the upload while none was measured."""
FIRST_OF_SESSIONS: Final = 0.25
"""Likewise for masking sessions and the upload."""
FACTOR: Final = 2.0
LEAST_S: Final = 1.0
MOST: Final = 0.5
"""Largest share of the time."""
KEPT: Final = 8
"""Times that count."""


def margin_s(
    known: Iterable[Sent], left_s: float, model_bytes: int, *, first: float = FIRST
) -> float:
    """The part of the time to the parent's deadline that is left for making and sending a sum.

    >>> margin_s([], 300.0, 1000), margin_s([(4.0, 1000), (1.0, 100)], 300.0, 1000)
    (30.0, 20.0)

    Args:
        known: of earlier sums; a larger model takes longer in proportion.
        left_s: seconds to the deadline.
        model_bytes: of the round.
        first: share of the time while none is known.
    """
    times = [seconds * max(1.0, model_bytes / max(1, size)) for seconds, size in known]
    if not times:
        return first * left_s
    return min(max(FACTOR * max(times), LEAST_S), MOST * left_s)


class SendingTimes:
    """Measures how long sums take, from the close of their rounds.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._closed: dict[str, tuple[int, float, int, bool]] = {}
        self._sent = {kind: deque[Sent](maxlen=KEPT) for kind in (False, True)}

    def closed(self, run: str, number: int, model_bytes: int, *, sessions: bool = False) -> None:
        """A round has closed, or its masking sessions have opened; its sum is made now."""
        self._closed[run] = number, self._clock(), model_bytes, sessions

    def acknowledged(self, run: str, number: int) -> None:
        """The parent has the sum of a round; those of before a restart are not measured."""
        if self._closed.get(run, (0,))[0] == number:
            _, since, model_bytes, sessions = self._closed.pop(run)
            self._sent[sessions].append((self._clock() - since, model_bytes))

    def forget(self, run: str) -> None:
        """A run has ended."""
        self._closed.pop(run, None)

    def margin_s(self, left_s: float, model_bytes: int, *, sessions: bool = False) -> float:
        """As the function `margin_s`, with what was measured; `sessions` if the round masks."""
        first = FIRST_OF_SESSIONS if sessions else FIRST
        return margin_s(self._sent[sessions], left_s, model_bytes, first=first)
