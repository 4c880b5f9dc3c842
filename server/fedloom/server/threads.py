"""Thread pools that run blocking calls for coroutines."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Thread:
    """A thread pool for blocking calls; with one thread, calls run in order.

    Attributes:
        observe: called with the seconds of each call, including its wait in the queue.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self.observe: Callable[[float], None] | None = None
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._counting = threading.Lock()
        self._given = self._done = 0

    @property
    def pending(self) -> int:
        """Calls that are queued or running."""
        return self._given - self._done

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` in the pool. It runs to its end even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        begun = time.perf_counter()

        def work() -> T:
            try:
                return call(*args, **kwargs)
            finally:
                with self._counting:
                    self._done += 1
                if self.observe is not None:
                    self.observe(time.perf_counter() - begun)

        working = loop.run_in_executor(self._pool, work)
        with self._counting:
            self._given += 1
        return await working

    def close(self) -> None:
        """Finish the running calls, cancel the queued ones and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
