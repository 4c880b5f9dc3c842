"""When a device with attendance = "check-in" connects next: when the server said, or later.

The time is kept in the state directory, so that an agent that restarts does not come early. After
an outage the device draws a new time with full jitter over what it was told last, so that the fleet
does not return at once (M. Brooker, "Exponential Backoff And Jitter", 2015).

Invariants: a wait is never longer than `LONGEST_S`, whatever the server says and whichever way the
clock was set. An error of the disk never ends the agent.
"""

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedloom.client.network.connection import JITTER, since_boot_s
from fedloom.protocol.atomic_files import write_whole

log = logging.getLogger(__name__)

FILE = "check-in.json"
LONGEST_S = 7 * 24 * 3600.0
LATE_S = 600.0
"""Longest jitter of an agent that starts after its check-in was due, seconds."""


class NextCheckIn:
    """The next check-in of a device.

    Args:
        state_dir: of the client.
        jitter: returns a random number from 0 to a limit.
        wall: seconds since the epoch.
        clock: seconds of a clock that nobody sets.

    Attributes:
        due: when to connect, by `clock`; None for at once.
    """

    def __init__(
        self,
        state_dir: Path,
        jitter: Callable[[float], float] = lambda most: JITTER.uniform(0, most),
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = since_boot_s,
    ) -> None:
        self._path = state_dir / FILE
        self._jitter, self._wall, self._clock = jitter, wall, clock
        self._told_s = 0.0
        self.due: float | None = None
        self._recall()

    def attends(self) -> None:
        """The server has accepted this device: an agent that restarts now comes back at once."""
        self.due = None
        self._keep(0.0)

    def told(self, seconds: float) -> None:
        """The server has said when to come next."""
        self._told_s = _bounded(seconds)
        self._set(self._told_s)

    def lost(self) -> bool:
        """The server could not be reached, or ended a connection; whether a check-in was set."""
        if self._told_s:
            self._set(self._jitter(self._told_s))
        return bool(self._told_s)

    def left_s(self) -> float:
        """Seconds until the next check-in."""
        return 0.0 if self.due is None else max(0.0, self.due - self._clock())

    def due_at(self) -> float:
        """Seconds since the epoch of the next check-in."""
        return self._wall() + self.left_s()

    def _set(self, seconds: float) -> None:
        self.due = self._clock() + seconds
        self._keep(self.due_at())

    def _keep(self, due_at: float) -> None:
        kept = {"due_at": due_at, "told_s": self._told_s}
        with suppress(OSError):
            write_whole(self._path, json.dumps(kept).encode(), mode=0o600)

    def _recall(self) -> None:
        try:
            kept = json.loads(self._path.read_text())
            due_at, told_s = float(kept["due_at"]), float(kept["told_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        left_s = due_at - self._wall()
        self._told_s = _bounded(told_s) if told_s else 0.0
        if not due_at:  # it attended
            return
        if 0 < left_s <= 2 * self._told_s:
            self._set(min(left_s, LONGEST_S))
        else:  # overdue, as are others that were off; or the clock was set back
            self._set(self._jitter(min(self._told_s, LATE_S)))


def _bounded(seconds: float) -> float:
    """Seconds between 1 and `LONGEST_S`.

    >>> [_bounded(each) for each in (-1.0, 60.0, 1e12, float("nan"))]
    [1.0, 60.0, 604800.0, 604800.0]
    """
    return LONGEST_S if math.isnan(seconds) else max(1.0, min(seconds, LONGEST_S))
