"""Performs the effects of an engine one after another, in order.

An effect whose storage fails is repeated until it succeeds, so effects must be idempotent. An
effect that fails otherwise is passed to its owner.
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
    """Performs effects in one asyncio task.

    Args:
        perform: performs one effect; returns the outcome, or None to continue.
        fail: handles an exception of `perform`; returns the outcome.
        ended: called with the outcome; returns whether to continue with further effects.
        owner: returns the owner's name for the log, and the context of its log lines.
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
        """Begin with the queued effects."""
        self._task = asyncio.ensure_future(self._work())

    def put(self, effect: Effect) -> None:
        """Queue an effect."""
        self._effects.put_nowait(effect)

    def cancel(self) -> None:
        """Perform no more effects; the one in progress is completed."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def stop(self) -> None:
        """Perform no more effects, and wait for the one in progress."""
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
