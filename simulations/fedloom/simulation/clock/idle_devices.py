"""Arrivals and departures of idle devices while a round is open, in order of time.

Invariant: `next_at` never decreases, and every move until the deadline is returned once.
"""

from collections.abc import Iterator
from math import inf

import numpy as np
from numpy.typing import NDArray

from .availability import Availability
from .device_random import Floats


class IdleDevices:
    """Arrivals and departures of all devices, from the opening of a round to its deadline.

    They are computed in parts of that time, and only on demand: many rounds close without selecting
    again.

    Args:
        windows: availability of devices.
        there: whether each device is available at the opening.
        times: next change of each device.
        turns: order of devices with moves at the same time, ascending.
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
        """The time of the first move that is not listed; infinity after the end."""
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
