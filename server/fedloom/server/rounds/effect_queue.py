"""The effects of an engine, performed one after another in the order in which it asked for them.

An effect that fails for want of storage is performed again until it succeeds, so performing it
twice must do no harm; an effect that fails otherwise is handed to its owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from fedloom.server.rounds.storage_retry import retry_storage

log = logging.getLogger(__name__)

Effect = TypeVar("Effect")
End = TypeVar("End")


class EffectQueue(Generic[Effect, End]):
    """Performs effects in a task of its own.

    Args:
        perform: performs one; returns how everything ended, or None to continue.
        fail: handles an exception of `perform`; returns how everything ended.
        ended: called with that; returns whether to continue with further effects.
        owner: whose effects these are, for the log, and the context of its log lines.
    """

    def __init__(
        self,
        perform: Callable[[Effect], Awaitable[End | None]],
        fail: Callable[[Exception], Awaitable[End]],
        ended: Callable[[End], bool],
        owner: Callable[[], tuple[str, dict[str, Any]]],
    ) -> None:
        self._perform = perform
        self._fail = fail
        self._ended = ended
        self._owner = owner
        self._effects: asyncio.Queue[Effect] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with what is in the queue."""
        self._task = asyncio.ensure_future(self._work())

    def put(self, effect: Effect) -> None:
        """Perform an effect after those before it."""
        self._effects.put_nowait(effect)

    def cancel(self) -> None:
        """Perform no more; called from an effect, that one is still completed."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def stop(self) -> None:
        """Perform no more, and wait until nothing is being performed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        continues = True
        while continues:
            effect = await self._effects.get()
            owner, context = self._owner()
            try:
                end = await retry_storage(partial(self._perform, effect), owner, context)
            except Exception as error:
                log.exception(owner, extra=context)
                end = await retry_storage(partial(self._fail, error), owner, context)
            if end is not None:
                continues = self._ended(end)
