"""Lets the rounds of all active runs take idle clients in turn.

`fedloom.server.planning.fair_share` decides whose turn it is. An engine asks before it takes
clients, and is woken when the turn of its run may have come.
"""

import asyncio
from typing import Protocol

from fedloom.server.planning.fair_share import Demand, FairShare


class Contender(Protocol):
    """An active run."""

    id: str

    def demand(self) -> Demand:
        """What it wants of the idle clients now."""

    def wake(self) -> None:
        """Let its open round take clients, if it waits for them."""


class Turns:
    """The active runs, which share the connected clients."""

    def __init__(self) -> None:
        self._fair = FairShare()
        self._runs: dict[str, Contender] = {}
        self._due = False
        self._waking = False

    def add(
        self, run: Contender, *, study: str, priority: int, share: float, submitted: float
    ) -> None:
        """Add a run."""
        self._runs[run.id] = run
        self._fair.add(run.id, study=study, priority=priority, share=share, at=submitted)

    def change(self, run: str, *, priority: int, share: float) -> None:
        """Change the priority and the share of an active run; others are ignored."""
        if run in self._runs:
            self._fair.change(run, priority=priority, share=share)
            self.changed()

    def remove(self, run: str) -> None:
        """Remove a run that has ended."""
        if self._runs.pop(run, None) is not None:
            self._fair.remove(run)
            self.changed()

    def set_aside(self, run: str, most: int) -> int:
        """Idle clients that a run leaves to those that come before it; at `most` it is enough."""
        if len(self._runs) < 2 or run not in self._runs:
            return 0
        return self._fair.set_aside(run, lambda other: self._runs[other].demand(), most)

    def take(self, run: str, tasks: int) -> None:
        """Count tasks that a run gives to clients."""
        if run in self._runs:
            self._fair.take(run, tasks, lambda other: self._runs[other].demand().waiting)

    def changed(self) -> None:
        """What a run wants, or which clients are idle, has changed: wake those that wait, soon."""
        if self._runs and not self._due and not self._waking:
            self._due = True
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        """Wake all runs now, the first one first."""
        self._due, self._waking = False, True
        try:
            for run in self._fair.order():
                if run in self._runs:
                    self._runs[run].wake()
        finally:
            self._waking = False
