"""Thread pools that run blocking calls for coroutines."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
ItemT = TypeVar("ItemT")


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
        return await self.start(call, *args, **kwargs)

    def start(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Queue `call`; the future is cancelled if the pool is closed before it runs."""
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
        return working

    def wait(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` in the pool for a thread of another one, which waits for the result.

        Raises:
            RuntimeError: the pool is closed.
        """
        return self._pool.submit(call, *args, **kwargs).result()

    def wait_all(self, call: Callable[[ItemT], None], items: Iterable[ItemT]) -> None:
        """Run `call` for each item in the pool, for a thread of another one, which waits for all.

        Raises:
            Exception: the first one of a call, when all have ended.
        """
        running = [self._pool.submit(call, item) for item in items]
        wait(running)
        for each in running:
            each.result()

    def close(self) -> None:
        """Finish the running calls, cancel the queued ones and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Grouped(Generic[ItemT, T]):
    """Calls for a thread that do together what waits together, such as in one transaction.

    What waits is done at the first place in the thread's queue that a call has taken: without
    patience never later than without groups, and its caller continues before those of calls that
    are done afterwards.

    Args:
        thread: with one thread.
        do: does items in order; returns for each its result, or the error to raise.
        most: items that are done together; None for any number.
        until_cancelled: leave out items whose callers were cancelled before they were begun.
        patience_s: seconds that an item waits for others before it takes a place, unless `most`
            wait or `hurry` was called.
    """

    def __init__(
        self,
        thread: Thread,
        do: Callable[[Sequence[ItemT]], Sequence[T | Exception]],
        *,
        most: int | None = None,
        until_cancelled: bool = False,
        patience_s: float = 0.0,
    ) -> None:
        self._thread = thread
        self._do = do
        self._most = most
        self._until_cancelled = until_cancelled
        self._patience_s = patience_s
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._waiting: list[tuple[ItemT, asyncio.Future[T]]] = []
        self._places = 0  # in the thread's queue

    async def __call__(self, item: ItemT) -> T:
        """Do an item, by default even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            self._waiting.append((item, future))
            is_full = self._most is not None and len(self._waiting) >= self._most
        if is_full or not self._patience_s:
            self._take_places(loop)
        elif self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._take_places, loop)
        return await future

    def hurry(self) -> None:
        """Wait for no others any more."""
        self._patience_s = 0.0
        self._take_places(asyncio.get_running_loop())

    def _take_places(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take places in the thread's queue for all that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._lacks_place():
            place = self._thread.start(self._take, loop)
            place.add_done_callback(self._cancel_if_closed)
            with self._lock:
                self._places += 1

    def _lacks_place(self) -> bool:
        with self._lock:
            room = self._places * (self._most or len(self._waiting))
            return room < len(self._waiting)

    def _cancel_if_closed(self, place: "asyncio.Future[None]") -> None:
        if place.cancelled():
            with self._lock:
                waiting, self._waiting, self._places = self._waiting, [], 0
            for _, future in waiting:
                future.cancel()

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._places -= 1
            waiting = self._waiting
            if self._until_cancelled:
                waiting = [each for each in waiting if not each[1].cancelled()]
            most = len(waiting) if self._most is None else self._most
            group, self._waiting = waiting[:most], waiting[most:]
        if not group:
            return
        results: Sequence[T | Exception]
        try:
            results = self._do([item for item, _ in group])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            results = [error] * len(group)
        for (_, future), result in zip(group, results, strict=True):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, future, result)


def _settle(future: "asyncio.Future[T]", result: T | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
