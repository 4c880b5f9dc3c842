"""The thread that the author's code trains in: one at a time, and never ended by force.

Python cannot end a thread. A training that is asked to stop and does not goes on until it returns,
or with its process; until then this device has nothing to train with, and says so.

Invariant: `run` returns, also when it is cancelled, once the code has: two trainings never overlap.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fedloom.client.api import Task
from fedloom.client.gates import Objection
from fedloom.protocol.errors import printable

log = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 10.0
"""From being asked to stop, within which offers wait: most trainings end at their next step, and a
client that declines is not asked again for the round."""
LEAST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""Between two questions of the server meanwhile; as long as the training has kept us so far."""


class TrainingThread:
    """Runs the author's code, one call at a time.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._task: Task | None = None
        self._asked_at: float | None = None
        self._ended = asyncio.Event()

    async def run(self, call: Callable[[], T], task: Task) -> T:
        """Run blocking code for a task in a daemon thread; nothing else runs there meanwhile.

        When cancelled, the code is asked to stop and is waited for.
        """
        self._task, self._asked_at = task, None
        self._ended.clear()
        try:
            return await _in_thread(call, task, self._asked)
        finally:
            self._has_ended()

    async def objection(self) -> Objection | None:
        """Why nothing can be trained now: a training that was asked to stop has not.

        One that may be about to end is waited for, `GRACE_S` at most since it was asked.
        """
        if not self._is_overdue():
            return None
        if self._asked_at is None:  # by the clock: nobody told us
            self._asked_at = self._clock()
        left_s = GRACE_S - (self._clock() - self._asked_at)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(left_s, 0.0))
        task = self._task
        if task is None or not self._is_overdue():
            return None
        for_s = self._clock() - (self._asked_at or 0.0)
        why = "nobody wants it any more" if task.dropped else "it is past budgets.training_s"
        return Objection(
            f"the training code is still busy with round {task.round} of {printable(task.run)}, "
            f"though {why}: it has not looked at task.should_stop() for {for_s:,.0f} s. "
            "Nothing else can be trained here until it returns, or the agent is restarted.",
            again_s=min(max(for_s, LEAST_REST_S), LONGEST_REST_S),
        )

    def _is_overdue(self) -> bool:
        return self._task is not None and self._task.should_stop()

    def _asked(self) -> None:
        self._asked_at = self._clock()

    def _has_ended(self) -> None:
        if self._asked_at is not None and self._task is not None:
            for_s = self._clock() - self._asked_at
            level = logging.WARNING if for_s > GRACE_S else logging.DEBUG
            log.log(
                level,
                "the training of round %d of %s has ended, %.0f s after it was asked to",
                self._task.round, self._task.run, for_s,
            )  # fmt: skip
        self._task = None
        self._ended.set()


async def _in_thread(call: Callable[[], T], task: Task, asked: Callable[[], None]) -> T:
    """Run blocking code in a daemon thread: it must not keep a stopping process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if not done.cancelled():
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            else:
                done.set_exception(error)

    def target() -> None:
        try:
            result, error = call(), None
        except BaseException as caught:  # noqa: BLE001 - handed over whole
            result, error = None, _bearable(caught)
        with suppress(RuntimeError):  # the loop has closed: nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=target, name="training", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        task.stop()
        asked()
        await asyncio.wait([done])
        done.exception()  # that it was stopped, or failed on its way out, is nobody's business
        raise


def _bearable(error: BaseException) -> Exception:
    """What the author's code raised, as something that ends its task and nothing else.

    `SystemExit` would end the agent, `CancelledError` pass for a task that nobody wants any more,
    and `StopIteration` is nothing that a future takes: it would be waited for without end.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    said = f"{type(error).__name__}({words(error)})"
    wrapped = RuntimeError(f"Expected train to return, got {said} out of it.")
    wrapped.__cause__ = error
    return wrapped


def words(error: BaseException) -> str:
    """What an error says, where it can say it."""
    try:
        return printable(str(error))
    except Exception as another:  # noqa: BLE001 - the author's own class
        return f"<its message raises {type(another).__name__}>"
