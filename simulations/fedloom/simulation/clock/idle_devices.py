"""Arrivals and departures of idle devices while a round is open, in order of time.

Invariant: `next_at` never goes back, and every move until the deadline is given once.
"""

from collections.abc import Iterator
from math import inf

import numpy as np
from numpy.typing import NDArray

from .availability import Availability
from .device_random import Floats


class IdleDevices:
    """Arrivals and departures of all devices, from the opening of a round to its deadline.

    They are listed for one part of that time after the other, and only on demand: many rounds close
    without drawing again.

    Args:
        windows: when devices are there.
        there: which devices are there at the opening.
        times: when each arrives or leaves next.
        turns: orders those that move at the same moment, the lower first.
        opened_s: virtual seconds.
        until_s: the deadline.
    """

    def __init__(
        self,
        windows: Availability,
        there: NDArray[np.bool_],
        times: Floats,
        *,
        turns: Floats,
        opened_s: float,
        until_s: float,
    ) -> None:
        self._windows, self._there, self._times = windows, there.copy(), times.copy()
        self._turns, self._end, self._until_s = turns, opened_s, until_s
        self._part_s = (until_s - opened_s) / 8
        self._moves: Iterator[tuple[float, int, bool]] = iter(())
        self._next: tuple[float, int, bool] | None = None
        self.next_at = self._after()

    def pop(self) -> tuple[float, int, bool]:
        """Time and place of the next move, and whether the device arrives."""
        move = self._next or next(self._list())
        self._next = next(self._moves, None)
        self.next_at = self._next[0] if self._next else self._after()
        return move

    def _after(self) -> float:
        """When the first of those that are not listed moves; infinity past the end."""
        first = float(self._times.min())
        return first if first <= self._until_s else inf

    def _list(self) -> Iterator[tuple[float, int, bool]]:
        self._end = max(self.next_at, min(self._end + self._part_s, self._until_s))
        everyone = np.arange(len(self._times))
        when, places, comes = self._windows.moves(everyone, self._times, self._there, self._end)
        order = np.lexsort((self._turns[places], when))
        self._moves = zip(
            when[order].tolist(), places[order].tolist(), comes[order].tolist(), strict=True
        )
        return self._moves
