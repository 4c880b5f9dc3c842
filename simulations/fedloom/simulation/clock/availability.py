"""Availability of devices: each follows a cycle of times at which it arrives or leaves.

A cycle is a length and the moments in it; each client follows a cycle with its own shift. Periodic
availability has two moments, a trace may have many.

Invariants: the next change is always later than `now`. Its time is computed by the same operations
for one client and for all, so that a device has changed at exactly the time of its change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError

from .device_random import Floats

Places = NDArray[np.int64]
Window = tuple[float, float]
"""Seconds into the cycle: when a device arrives, and when it leaves."""

_CYCLES_WATCHED = 10
"""Longest wait for enough devices, in longest cycles, if cycles differ in length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Availability:
    """Cycles, and the cycle of each client.

    Attributes:
        moments: seconds into their cycle at which devices arrive or leave in turn; ascending within
            a cycle, an even number for each, in [0, cycle_s); all cycles concatenated.
        first: index of each cycle's first moment in `moments`, and the end; shape (cycles + 1,).
        cycle_s: length of each, seconds, > 0.
        before: whether a device is available before the first moment of its cycle.
        cycle: number of each client's cycle; shape (clients,).
        shift_s: seconds into its cycle of each client at virtual time 0; shape (clients,).
    """

    moments: Floats
    first: Places
    cycle_s: Floats
    before: NDArray[np.bool_]
    cycle: Places
    shift_s: Floats

    # ---- all clients at once -----------------------------------------------------------------

    def look(self, now: float) -> tuple[NDArray[np.bool_], Floats]:
        """Whether each client is available, and its next change after `now`; infinity for never.

        Returns:
            Two arrays of shape (clients,).
        """
        return self.look_at(np.arange(len(self.cycle)), np.full(len(self.cycle), now))

    def look_at(self, clients: Places, now: Floats) -> tuple[NDArray[np.bool_], Floats]:
        """The same for some clients, each at its own time."""
        cycle = self.cycle[clients]
        length, shift = self.cycle_s[cycle], self.shift_s[clients]
        turn = np.floor((now + shift) / length)
        turn -= turn * length - shift > now  # rounding may be off by one turn
        turn += (turn + 1.0) * length - shift <= now
        origin = turn * length - shift
        begin, end = self.first[cycle], self.first[cycle + 1]
        place = self._passed(origin, now, begin, end)
        there = self.before[cycle] ^ ((place - begin) % 2 == 1)
        over = place == end
        origin = np.where(over, (turn + 1.0) * length - shift, origin)
        if not len(self.moments):
            return there, np.full(len(clients), inf)
        moment = self.moments[np.minimum(np.where(over, begin, place), len(self.moments) - 1)]
        return there, np.where(begin == end, inf, origin + moment)

    def _passed(self, origin: Floats, now: Floats, low: Places, high: Places) -> Places:
        """Binary search: the first moment of each client's cycle that is later than now."""
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) // 2
            looked = self.moments[np.minimum(middle, len(self.moments) - 1)]
            right = (low < high) & (origin + looked <= now)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        return low

    # ---- one client --------------------------------------------------------------------------

    def next_change(self, client: int, now: float) -> float:
        """The time of this client's next change after `now`; infinity for never."""
        cycle = self.cycle.item(client)
        length, shift = self.cycle_s.item(cycle), self.shift_s.item(client)
        turn = float(floor((now + shift) / length))
        turn -= turn * length - shift > now
        turn += (turn + 1.0) * length - shift <= now
        origin = turn * length - shift
        begin, end = self.first.item(cycle), self.first.item(cycle + 1)
        if begin == end:
            return inf
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            if origin + self.moments.item(middle) <= now:
                low = middle + 1
            else:
                high = middle
        if low < end:
            return origin + self.moments.item(low)
        return (turn + 1.0) * length - shift + self.moments.item(begin)

    # ---- waiting -----------------------------------------------------------------------------

    def first_with(
        self, wanted: int, start_s: float, *, besides: Sequence[int] = ()
    ) -> float | None:
        """The first time, `start_s` or later, at which this many devices are available at once.

        Args:
            wanted: number of devices.
            start_s: virtual seconds.
            besides: indices of devices that do not count.

        Returns:
            None if there is none within one turn of the cycle, after which all repeats, or within
            10 turns of the longest cycle if lengths differ.
        """
        there, times = self.look(start_s)
        there[list(besides)], times[list(besides)] = False, inf
        count = int(there.sum())
        if count >= wanted:
            return start_s
        movers = np.flatnonzero(times < inf)
        if int(there[times == inf].sum()) + len(movers) < wanted:
            return None
        lengths = self.cycle_s[self.cycle[movers]]
        longest, same = float(lengths.max()), bool((lengths == lengths[0]).all())
        limit = start_s + longest * (1 if same else _CYCLES_WATCHED)
        times, there = times[movers], there[movers]
        end, slice_s = start_s, longest / 256
        while end < limit:
            end, slice_s = min(end + slice_s, limit), 2 * slice_s
            when, _, comes = self.moves(movers, times, there, end)
            change = np.where(comes, 1, -1)
            counts = count + np.cumsum(change)
            # Of changes at one time only the last count is valid.
            last = np.append(when[1:] > when[:-1], True)[: len(when)]
            enough = np.flatnonzero((counts >= wanted) & last)
            if len(enough):
                return float(when[enough[0]])
            count += int(change.sum())
        return None

    def moves(
        self, clients: Places, times: Floats, there: NDArray[np.bool_], end: float
    ) -> tuple[Floats, Places, NDArray[np.bool_]]:
        """Every arrival and departure of these clients until `end`, in order of time.

        Args:
            clients: their indices.
            times: next change of each; updated to be later than `end`.
            there: whether each is available before it; updated likewise.
            end: virtual seconds.

        Returns:
            The time, the index in `clients`, and whether the client arrives.
        """
        when, place, comes = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
        due = np.flatnonzero(times <= end)
        while len(due):
            when.append(times[due])
            place.append(due)
            comes.append(~there[due])
            there[due], times[due] = self.look_at(clients[due], times[due])
            due = due[times[due] <= end]
        moments = np.concatenate(when)
        order = np.argsort(moments, kind="stable")
        return moments[order], np.concatenate(place)[order], np.concatenate(comes)[order]


def periodic(on_s: Floats, off_s: Floats, phase: Floats) -> Availability:
    """Devices that are available for on_s, unavailable for off_s, and so on.

    Args:
        on_s: seconds, > 0, shape (clients,).
        off_s: seconds, > 0.
        phase: elapsed part of each client's cycle at virtual time 0, in (0, 1).
    """
    clients = len(on_s)
    cycle_s = on_s + off_s
    return Availability(
        moments=np.stack([np.zeros(clients), on_s], axis=1).ravel(),
        first=np.arange(clients + 1, dtype=np.int64) * 2,
        cycle_s=cycle_s,
        before=np.zeros(clients, np.bool_),
        cycle=np.arange(clients, dtype=np.int64),
        shift_s=phase * cycle_s,
    )


def from_windows(
    windows: Sequence[Sequence[Window]], cycle_s: Sequence[float], cycle: Places
) -> Availability:
    """Devices that repeat the windows of traces.

    Args:
        windows: of each cycle; those that touch or overlap are merged.
        cycle_s: length of each cycle, seconds.
        cycle: number of each client's cycle, shape (clients,).

    Raises:
        UsageError: a window ends before it begins, or is not within its cycle.
    """
    moments, before = [], []
    for number, (own, length) in enumerate(zip(windows, cycle_s, strict=True)):
        found, there = _moments(own, length, f"cycle {number}")
        moments.append(found)
        before.append(there)
    ends = np.cumsum([0, *map(len, moments)], dtype=np.int64)
    return Availability(
        moments=np.array([moment for found in moments for moment in found], np.float64),
        first=ends,
        cycle_s=np.array(cycle_s, np.float64),
        before=np.array(before, np.bool_),
        cycle=cycle,
        shift_s=np.zeros(len(cycle)),
    )


def _moments(windows: Sequence[Window], length: float, name: str) -> tuple[list[float], bool]:
    """The moments of a cycle, and whether a device is available before the first."""
    merged: list[list[float]] = []
    for begin, end in sorted(windows):
        if not 0 <= begin <= end <= length:
            raise UsageError(
                f"Expected windows within 0 to {length} s, each from earlier to later, got "
                f"{begin} to {end} in {name}."
            )
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        elif begin < end:
            merged.append([begin, end])
    found = [moment for window in merged for moment in window]
    if found and found[-1] == length:
        if found[0] == 0:  # available across the end of a turn: no change
            return found[1:-1], True
        return [0.0, *found[:-1]], True  # leaves at the start of the next turn
    return found, False
