"""Training code in a thread of this process, for programs that embed an agent.

Python cannot kill a thread. Training code that ignores the request to stop runs until it returns or
the process ends; until then this device declines offers and gives the reason. `training_process`
has none of these limits.

Invariant: `run` returns, even when cancelled, only after the code has: trainings never overlap.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fedloom.client.agent.task_run import TaskRun
from fedloom.client.agent.task_runner import TaskOrder, TaskRunner, as_exception
from fedloom.client.api import Client, Task
from fedloom.client.budgets import Budgets
from fedloom.client.gates import Objection
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import printable
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 10.0
"""How long an offer waits for a training that was asked to stop: most end at their next step, and a
client that declines is not offered the round again."""
LEAST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""Bounds of the pause that is asked of the server meanwhile: the time waited so far."""


class TrainingThread(TaskRunner):
    """Runs training code, one call at a time.

    Args:
        client: the training code.
        store: of models and updates.
        budgets: of the device.
        clock: seconds.
    """

    def __init__(
        self,
        client: Client,
        store: ClientStore,
        budgets: Budgets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._store, self._budgets = client, store, budgets
        self._clock = clock
        self._task: Task | None = None
        self._asked_at: float | None = None
        self._ended = asyncio.Event()

    def can_train(self) -> bool:
        """Whether the code has a `train`."""
        return self._client.can_train()

    def memory_bytes(self) -> int:
        """None: the code runs in this process."""
        return 0

    async def start(self) -> None:
        """Do nothing: the code is loaded."""

    async def close(self) -> None:
        """Do nothing: the thread ends with the process."""

    async def train(self, order: TaskOrder) -> fleet_pb2.UpdateHeader:
        """Run a task; its update is then in the outbox."""
        work = TaskRun(
            self._client, order.task, order.message, order.client, self._store, order.policy,
            self._budgets,
        )  # fmt: skip
        return await self.run(work.run, order.task)

    async def run(self, call: Callable[[], T], task: Task) -> T:
        """Run blocking code for a task in a daemon thread.

        When cancelled, it asks the code to stop and waits for it.
        """
        self._task, self._asked_at = task, None
        self._ended.clear()
        try:
            return await _in_thread(call, task, self._asked)
        finally:
            self._has_ended()

    async def objection(self) -> Objection | None:
        """Why nothing can be trained now: a training ignores the request to stop. None if free.

        Waits up to `GRACE_S` from the request for the training to end.
        """
        if not self._is_overdue():
            return None
        if self._asked_at is None:  # out of time: stop() was not called
            self._asked_at = self._clock()
        left_s = GRACE_S - (self._clock() - self._asked_at)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(left_s, 0.0))
        task = self._task
        if task is None or not self._is_overdue():
            return None
        for_s = self._clock() - (self._asked_at or 0.0)
        why = "the server withdrew it" if task.dropped else "it is past budgets.training_s"
        return Objection(
            f"the training code is still running round {task.round} of {printable(task.run)}, "
            f"though {why}: it has ignored task.should_stop() for {for_s:,.0f} s. "
            "Nothing else can be trained here until it returns or the agent is restarted.",
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
                "the training of round %d of %s ended %.0f s after the request to stop",
                self._task.round, self._task.run, for_s,
            )  # fmt: skip
        self._task = None
        self._ended.set()


async def _in_thread(call: Callable[[], T], task: Task, asked: Callable[[], None]) -> T:
    """Run blocking code in a daemon thread, which does not keep a stopping process alive."""
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
        except BaseException as caught:  # noqa: BLE001 - passed on
            result, error = None, as_exception(caught)
        with suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=target, name="training", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        task.stop()
        asked()
        await asyncio.wait([done])
        done.exception()  # retrieved, so that asyncio does not log it
        raise
