"""Effects, done one after another in the order in which an engine asked for them.

A step that fails for want of storage is tried until it is done, since every step may be done
again; one that fails otherwise is handed to whoever knows what that means.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from fedloom.server.rounds.storage_retry import patiently

log = logging.getLogger(__name__)

Effect = TypeVar("Effect")
End = TypeVar("End")


class Performer(Generic[Effect, End]):
    """Does effects, in a task of its own.

    Args:
        perform: does one; returns how everything ended, or None if it goes on.
        fail: follows on one that raised; returns how everything ended.
        ended: told how; returns whether more is to be done.
        whose: are the effects, as the log says; and what its lines are about.
    """

    def __init__(
        self,
        perform: Callable[[Effect], Awaitable[End | None]],
        fail: Callable[[Exception], Awaitable[End]],
        ended: Callable[[End], bool],
        whose: Callable[[], tuple[str, dict[str, Any]]],
    ) -> None:
        self._perform = perform
        self._fail = fail
        self._ended = ended
        self._whose = whose
        self._effects: asyncio.Queue[Effect] = asyncio.Queue()
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with what was put."""
        self._working = asyncio.ensure_future(self._work())

    def put(self, effect: Effect) -> None:
        """Do an effect after those before it."""
        self._effects.put_nowait(effect)

    def cancel(self) -> None:
        """Do no more; called from an effect, that one is done to its end."""
        if self._working is not None and self._working is not asyncio.current_task():
            self._working.cancel()

    async def stop(self) -> None:
        """Do no more, and wait until nothing is being done."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        goes_on = True
        while goes_on:
            effect = await self._effects.get()
            whose, told = self._whose()
            try:
                end = await patiently(partial(self._perform, effect), whose, told)
            except Exception as error:
                log.exception(whose, extra=told)
                end = await patiently(partial(self._fail, error), whose, told)
            if end is not None:
                goes_on = self._ended(end)
