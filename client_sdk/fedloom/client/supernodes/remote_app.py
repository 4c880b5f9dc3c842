"""A Flower app on a SuperNode as a `Client`: its thread waits while the SuperNode works.

A bridge has a thread for each SuperNode in a task, but few hold a model at once: `Places` bounds
those that convert, and a thread that waits for its SuperNode holds none.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from flwr.app import Message

from fedloom.client.agent.training_thread import TrainingThread
from fedloom.client.api import Client, Task
from fedloom.client.budgets import Budgets
from fedloom.client.flower.adapter import Instruction, MessageClient
from fedloom.client.state.store import ClientStore
from fedloom.client.supernodes.apps import AppBundle, FirstConfigs
from fedloom.client.supernodes.mailbox import Mailbox
from fedloom.client.supernodes.mailboxes import Mailboxes
from fedloom.protocol.errors import UsageError

T = TypeVar("T")

LOOK_S = 0.5
"""Time between two looks whether a task was withdrawn."""

CONVERTING = 2
"""Threads that hold a model at once."""


class Places:
    """Bounds the threads that hold a model in memory."""

    def __init__(self, places: int = CONVERTING) -> None:
        self._free = threading.Semaphore(places)

    def around(self, call: Callable[[], T]) -> Callable[[], T]:
        """The call, in a place."""

        def placed() -> T:
            with self._free:
                return call()

        return placed

    def without(self, call: Callable[[], T]) -> T:
        """Within a placed call: leave the place during another call."""
        self._free.release()
        try:
            return call()
        finally:
            self._free.acquire()


class RemoteApp(MessageClient):
    """The client of one SuperNode.

    Args:
        app: that it runs.
        mailboxes: through which it is reached; what is in them stays until `ended`.
        first: the configs with which its runs began.
        node_id: its number.
        places: of the bridge.
        client_fn: whether the app takes the older messages.
        evaluates: whether it has a function for evaluation.
    """

    def __init__(
        self,
        app: AppBundle,
        mailboxes: Mailboxes,
        first: FirstConfigs,
        node_id: int,
        places: Places,
        *,
        client_fn: bool,
        evaluates: bool,
    ) -> None:
        super().__init__(app.defaults, is_legacy=client_fn)
        self._app, self._mailboxes, self._first = app, mailboxes, first
        self._node_id, self._places = node_id, places
        self._evaluates = evaluates

    def can_train(self) -> bool:
        """Whether the app can train: the operator named it for that."""
        return True

    def can_evaluate(self) -> bool:
        """Whether the app can evaluate, as the settings say."""
        return self._evaluates

    def _answer(self, instruction: Instruction) -> Message:
        task, mailbox = instruction.task, self._mailboxes.of(instruction.message_type)
        known = self._app.known(instruction.config)
        self._first.check(self._app.run_id(task.run), known)
        run = self._app.run(task.run, known)

        def build(created_at: float) -> Message:
            return instruction.message(run.run_id, self._node_id, created_at)

        mailbox.post(build, run, time.time())
        instruction.content.clear()  # it is on disk
        self._places.without(lambda: _wait(mailbox, task))
        return mailbox.reply()


def _wait(mailbox: Mailbox, task: Task) -> None:
    while not mailbox.wait(LOOK_S):
        if task.dropped:
            raise UsageError("The server withdrew the task.")


class SupernodeThread(TrainingThread):
    """Runs the tasks of one SuperNode in threads of the bridge.

    Args:
        places: of the bridge.
        mailboxes: the SuperNode's.
        client: the SuperNode's.
        store: of models and updates.
        budgets: of the client.
    """

    def __init__(
        self,
        places: Places,
        mailboxes: Mailboxes,
        client: Client,
        store: ClientStore,
        budgets: Budgets,
    ) -> None:
        super().__init__(client, store, budgets)
        self._places, self._mailboxes = places, mailboxes

    async def run(self, call: Callable[[], T], task: Task) -> T:
        """As the base, within the bridge's bound of memory; then the mailboxes are cleared.

        A reply stays until the update is in the outbox: after a SIGKILL before, it is read again.
        """

        def whole() -> T:
            try:
                return call()
            finally:
                self._mailboxes.ended()

        return await super().run(self._places.around(whole), task)
