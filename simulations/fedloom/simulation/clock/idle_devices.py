"""Arrivals and departures of idle devices while a round is open, in order of time.

Invariant: `next_at` never decreases, and every move until the deadline is returned once.
"""

from bisect import bisect_right
from collections.abc import Callable
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
        turns: returns the order of devices with moves at the same time, ascending.
        ranks: of each device in the roster of the candidates.
        opened_s: virtual seconds.
        until_s: the deadline.
    """

    def __init__(
        self,
        windows: Availability,
        there: NDArray[np.bool_],
        times: Floats,
        *,
        turns: Callable[[], Floats],
        ranks: NDArray[np.intp],
        opened_s: float,
        until_s: float,
    ) -> None:
        self._windows, self._there, self._times = windows, there.copy(), times.copy()
        self._turns, self._end, self._until_s = turns, opened_s, until_s
        self._part_s = (until_s - opened_s) / 8
        self._when: list[float] = []
        self._moves: list[tuple[int, bool]] = []
        self._ranks = ranks
        self._left_out = bytearray(len(ranks))
        self._next = 0
        self.next_at = self._after()

    def leave_out(self, place: int) -> None:
        """`until` returns no moves of this device any more."""
        self._left_out[self._ranks.item(place)] = 1

    def leave_out_all(self, places: NDArray[np.intp]) -> None:
        """`leave_out` each of these."""
        np.frombuffer(self._left_out, np.bool_)[self._ranks[places]] = True

    def pop(self) -> tuple[float, int, bool]:
        """Time and rank of the next move, and whether the device arrives."""
        if self._next == len(self._when):
            self._list()
        at_s, (rank, comes) = self._when[self._next], self._moves[self._next]
        self._pass(self._next + 1)
        return at_s, rank, comes

    def until(self, now: float) -> list[tuple[int, bool]]:
        """Rank of each move until this time, and whether the device arrives."""
        left_out, moves = self._left_out, []
        while self.next_at <= now:
            if self._next == len(self._when):
                self._list()
            first = self._next
            self._pass(bisect_right(self._when, now, first))
            moves += [move for move in self._moves[first : self._next] if not left_out[move[0]]]
        return moves

    def _pass(self, count: int) -> None:
        self._next = count
        self.next_at = self._when[count] if count < len(self._when) else self._after()

    def _after(self) -> float:
        """The time of the first move that is not listed; infinity after the end."""
        first = float(self._times.min())
        return first if first <= self._until_s else inf

    def _list(self) -> None:
        self._end = max(self.next_at, min(self._end + self._part_s, self._until_s))
        everyone = np.arange(len(self._times))
        when, places, comes = self._windows.moves(everyone, self._times, self._there, self._end)
        if (when[1:] == when[:-1]).any():
            order = np.lexsort((self._turns()[places], when))
            places, comes = places[order], comes[order]
        self._when, self._next = when.tolist(), 0
        self._moves = list(zip(self._ranks[places].tolist(), comes.tolist(), strict=True))
