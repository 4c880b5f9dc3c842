"""Work that was begun and that nobody awaits: held here, since the loop itself would not."""

import asyncio
from collections.abc import Awaitable


class Pending:
    """Tasks that have not ended yet."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    def start(self, work: Awaitable[None]) -> "asyncio.Future[None]":
        """Begin something and hold it until it ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Have everything end soon."""
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Wait until nothing is left, whatever came of it."""
        while self._tasks:
            await asyncio.wait(self._tasks)
