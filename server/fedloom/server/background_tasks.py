"""Background tasks, referenced until they end: the event loop keeps only weak references."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Tasks that have not ended yet."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    def start(self, work: Awaitable[None]) -> "asyncio.Future[None]":
        """Start a task and keep it until it ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel every task."""
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Wait until every task has ended, whatever its result."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def to_the_end(work: Awaitable[T]) -> T:
    """Await work that runs to its end even if the caller is cancelled.

    Nobody reads its error then; without the callback asyncio would log it as never retrieved.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return await asyncio.shield(task)
