"""The event loop of a server, which measures how busy it is."""

import asyncio
import math
import selectors
import time
from typing import Final

MEMORY_S: Final = 0.05
"""Time constant of the mean."""


class _Selector(selectors.DefaultSelector):
    """A selector that measures how much of the time it is not waiting.

    Attributes:
        busy_share: from 0 to 1, an exponential mean over `MEMORY_S`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy_share = 0.0
        self._ended = time.perf_counter()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, as the base class."""
        begun = time.perf_counter()
        try:
            return super().select(timeout)
        finally:
            before, self._ended = self._ended, time.perf_counter()
            if (whole_s := self._ended - before) > 0:
                new = 1 - math.exp(-whole_s / MEMORY_S)
                self.busy_share += new * ((begun - before) / whole_s - self.busy_share)


class ServerLoop(asyncio.SelectorEventLoop):
    """An event loop that knows its `busy_share`."""

    def __init__(self) -> None:
        self._timed = _Selector()
        super().__init__(self._timed)

    @property
    def busy_share(self) -> float:
        """Share of the last 50 ms in which callbacks ran or waited for a processor: 0 to 1."""
        return self._timed.busy_share


def busy_share() -> float:
    """The share of time in which the running loop is busy; 0 if the loop does not measure it."""
    loop = asyncio.get_running_loop()
    return loop.busy_share if isinstance(loop, ServerLoop) else 0.0
