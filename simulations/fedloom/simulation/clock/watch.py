"""Which devices are available when rounds begin, without looking at all of them each time.

From one round to the next most devices of a large population neither arrive nor leave.

Invariant: `Watch.look` returns the same as `Availability.look`, whatever was looked at before.
"""

import numpy as np
from numpy.typing import NDArray

from .availability import Availability
from .device_random import Floats


class Watch:
    """Looks at the availability of devices at times that mostly ascend.

    Args:
        availability: of the devices.
    """

    def __init__(self, availability: Availability) -> None:
        self.availability = availability
        self._at_s = np.inf  # of the last look
        self._last: tuple[NDArray[np.bool_], Floats] = np.empty(0, np.bool_), np.empty(0)

    def look(self, now: float) -> tuple[NDArray[np.bool_], Floats]:
        """See `Availability.look`; the arrays are the caller's."""
        if self._at_s > now:
            self._last = self.availability.look(now)
        else:
            there, changes = self._last
            due = np.flatnonzero(changes <= now)
            there[due], changes[due] = self.availability.look_at(due, np.full(len(due), now))
        self._at_s = now
        there, changes = self._last
        return there.copy(), changes.copy()
