"""The future-event list of a round: the next event of each device at work.

The events of a cohort are sorted once, so that the updates between two other events are a slice.
Those that are added one by one are in a binary heap. A device has at most one event in the list.

Source: Law 2015, "Simulation Modeling and Analysis", section 1.3 (the future-event list).

Invariant: events come in order of time; at one time, in the order in which they were added.
"""

from bisect import bisect_left
from collections.abc import Collection
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from .device_random import Floats

REPORTS, FAILS, LEAVES, RETURNS = range(4)
"""The next event of a device."""

Event = tuple[float, int, int, int]
"""Its time, the order in which it was added, what happens, and the device, which is an index."""

_END: Event = (inf, 1 << 62, -1, -1)


class FutureEvents:
    """The next events of devices.

    Args:
        refused: devices whose updates are known to be refused.
    """

    def __init__(self, refused: Collection[int] = ()) -> None:
        self._refused = frozenset(refused)
        self._added = 0
        self._heap: list[Event] = []
        self._withdrawn: dict[int, int] = {}  # device → events added before its work ended
        self._sort(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))

    def add(self, at_s: float, what: int, place: int) -> None:
        """Add the next event of a device."""
        self._added += 1
        heappush(self._heap, (at_s, self._added, what, place))

    def add_all(self, at_s: Floats, what: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Add the next events of devices, in this order; all of shape (devices,)."""
        if self._sorted[self._next] is _END:
            self._sort(at_s, what, places)
            return
        for event in zip(at_s.tolist(), what.tolist(), places.tolist(), strict=True):
            self.add(*event)

    def _sort(self, at_s: Floats, what: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        by_time = np.argsort(at_s, kind="stable")
        what, places = what[by_time], places[by_time]
        stops = what != REPORTS
        if self._refused:
            stops |= np.isin(places, list(self._refused))
        self._times, self._places = at_s[by_time].tolist(), places.tolist()
        orders = (by_time + (self._added + 1)).tolist()
        events = zip(self._times, orders, what.tolist(), self._places, strict=True)
        self._sorted = [*events, _END]
        # Places of all but updates that count, the nearest last.
        self._stops = [len(at_s), *np.flatnonzero(stops)[::-1].tolist()]
        self._next = 0
        self._added += len(at_s)

    def peek(self) -> Event:
        """The next event; at infinity for none."""
        if self._withdrawn:
            self._skip_withdrawn()
        heap, first = self._heap, self._sorted[self._next]
        return heap[0] if heap and heap[0] < first else first

    def pop(self) -> Event:
        """Remove the event that `peek` returned last."""
        heap, first = self._heap, self._sorted[self._next]
        if heap and heap[0] < first:
            return heappop(heap)
        self._skip()
        return first

    def pop_reports(self, before_s: float, most: int) -> tuple[list[int], list[float]]:
        """Remove the next events as long as they are updates that count.

        It may remove fewer than possible, also none.

        Args:
            before_s: an event at this time or later stays.
            most: events to remove.

        Returns:
            The devices, and the times.
        """
        places: list[int] = []
        times: list[float] = []
        heap = self._heap
        while len(places) < most and not self._withdrawn:
            n = self._next
            until_s = min(before_s, heap[0][0]) if heap else before_s
            end = bisect_left(self._times, until_s, n, min(self._stops[-1], n + most - len(places)))
            if end > n:
                places += self._places[n:end]
                times += self._times[n:end]
                self._next = end
            elif heap and self._counts(heap[0]) and heap[0][0] < before_s:
                at_s, _, _, place = heappop(heap)
                places.append(place)
                times.append(at_s)
            else:
                break
        return places, times

    def _counts(self, event: Event) -> bool:
        """Whether an event is an update that counts, and comes before those that are sorted."""
        first = event < self._sorted[self._next]
        return first and event[2] == REPORTS and event[3] not in self._refused

    # ---- work that ends ----------------------------------------------------------------------

    def withdraw(self, place: int) -> None:
        """Remove the event of a device, if it has one."""
        self._withdrawn[place] = self._added

    def _is_valid(self, order: int, place: int) -> bool:
        return order > self._withdrawn.get(place, 0)

    def _skip_withdrawn(self) -> None:
        heap = self._heap
        while heap and not self._is_valid(*heap[0][1::2]):
            heappop(heap)
        while not self._is_valid(*self._sorted[self._next][1::2]):
            self._skip()

    def _skip(self) -> None:
        if self._next == self._stops[-1]:
            self._stops.pop()
        self._next += 1

    def all(self) -> list[Event]:
        """Every event, in order."""
        events = sorted([*self._heap, *self._sorted[self._next : -1]])
        return [event for event in events if self._is_valid(event[1], event[3])]
