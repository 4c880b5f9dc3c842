"""Looking at the conditions while a task is worked on: one that ends may end the work."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fedloom.client.conditions import ConditionGate, Conditions

T = TypeVar("T")


class ConditionLost(Exception):  # noqa: N818 - it happens to every device
    """A condition ended while a task was worked on."""


def _nothing() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionWatch:
    """What is looked at while a task is worked on.

    Attributes:
        lost: why not to go on; blocks.
        check_s: between two looks; 0 for none.
        again_s: the rest that the server is asked for when work is given up.
    """

    lost: Callable[[], str | None] = _nothing
    check_s: float = 0.0
    again_s: float = 0.0

    @classmethod
    def of(cls, gate: ConditionGate, conditions: Conditions) -> "ConditionWatch":
        """The watch that a device's settings ask for."""
        looks = conditions.when_lost != "finish" and conditions.are_any
        check_s = conditions.check_s if looks else 0.0
        return cls(lost=gate.lost, check_s=check_s, again_s=conditions.again_s)

    async def over(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work to its end, or until a condition ends.

        Raises:
            ConditionLost: a condition ended; the work was cancelled, and is over.
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
                return working.result()  # it was just about to end
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
