"""Checks the device's conditions while a task runs: one that ends may cancel the task."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fedloom.client.conditions import ConditionGate, Conditions

T = TypeVar("T")


class ConditionLost(Exception):  # noqa: N818 - it happens to every device
    """A condition ended while a task ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionWatch:
    """Checks conditions while a task runs.

    Attributes:
        lost: returns why not to continue, or None; blocks.
        check_s: seconds between two checks; 0 for none.
        again_s: the pause that the server is asked for when a task is cancelled.
    """

    lost: Callable[[], str | None] = lambda: None
    check_s: float = 0.0
    again_s: float = 0.0

    @classmethod
    def of(cls, gate: ConditionGate, conditions: Conditions) -> "ConditionWatch":
        """The watch of a device's settings."""
        looks = conditions.when_lost != "finish" and conditions.are_any
        check_s = conditions.check_s if looks else 0.0
        return cls(lost=gate.lost, check_s=check_s, again_s=conditions.again_s)

    async def over(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, or until a condition ends.

        Raises:
            ConditionLost: a condition ended; the coroutine was cancelled and has ended.
        """
        if not self.check_s:
            return await work
        working = asyncio.ensure_future(work)
        looking = asyncio.ensure_future(self._reason())
        try:
            await asyncio.wait((working, looking), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.wait([working])
            if not working.cancelled() and working.exception() is None:
                return working.result()  # it ended at the same moment
            raise ConditionLost(looking.result())
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait([working])
            raise
        finally:
            looking.cancel()

    async def _reason(self) -> str:
        while True:
            await asyncio.sleep(self.check_s)
            if reason := await asyncio.to_thread(self.lost):
                return reason
