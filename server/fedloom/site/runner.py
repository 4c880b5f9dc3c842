"""Performs a parent's tasks by rounds of this server, in place of training.

The agent downloads the model and sends what is in its outbox, as on a device; between the two, the
server holds a round for its own devices.
"""

import asyncio
import os
import shutil
import time

from fedloom.client.agent.task_run import OutOfTimeError
from fedloom.client.agent.task_runner import TaskOrder, TaskRunner
from fedloom.client.gates import Objection
from fedloom.client.state.store import ClientStore
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import UsageError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds.upstream.collector import Collector, NoDevicesError
from fedloom.server.rounds.upstream.outbox import SumOutbox


class SumRunner(TaskRunner):
    """Holds one round for each task, and puts its sum into the agent's outbox.

    Args:
        collector: holds the rounds.
        outbox: of the server, where it stores their sums.
        store: of the agent.
        gate: of the agent, which notes when tasks came.

    Attributes:
        keeps: whether rounds whose tasks are cancelled go on, since the server is stopping.
    """

    def __init__(
        self, collector: Collector, outbox: SumOutbox, store: ClientStore, gate: "SiteGate"
    ) -> None:
        self._collector, self._outbox, self._store = collector, outbox, store
        self._gate = gate
        self._settling: set[asyncio.Task[None]] = set()
        self.keeps = False

    async def start(self) -> None:
        """Do nothing: the server runs."""

    async def close(self) -> None:
        """Do nothing: the server ends its rounds."""

    def can_train(self) -> bool:
        """True: its devices do, or say why not."""
        return True

    def memory_bytes(self) -> int:
        """None: the server is this process."""
        return 0

    async def objection(self) -> Objection | None:
        """None: a site is never busy with another task."""
        return None

    async def train(self, order: TaskOrder) -> fleet_pb2.UpdateHeader:
        """Hold the round of a task; its sum is then in the agent's outbox.

        Raises:
            OutOfTimeError: no device came: the task is declined.
            UsageError: the round cannot be held, or was abandoned.
        """
        task = order.message
        key = task.key.run, task.key.round
        try:
            ends_at = self._gate.came_at(*key) + task.deadline_s  # the model took time, too
            await self._collector.collect(task, self._store.model_path, order.client, ends_at)
        except NoDevicesError as error:
            raise OutOfTimeError(str(error)) from error  # declined, not failed
        except asyncio.CancelledError:
            if not self.keeps:
                self._collector.withdraw(*key)
            raise
        return await asyncio.to_thread(self._put, *key)

    def _put(self, run: str, number: int) -> fleet_pb2.UpdateHeader:
        header = self._outbox.header(run, number)
        if header is None:
            raise UsageError(f"the sum of round {number} of {run} is missing at this site.")
        body = self._store.body_path(run, number)
        body.unlink(missing_ok=True)
        source = self._outbox.body_path(run, number)
        try:
            os.link(source, body)
        except OSError:  # another file system
            shutil.copyfile(source, body)
        self._store.add_unsent(header)
        crossing("site.sum.sending")
        return header

    def sent(self, header: fleet_pb2.UpdateHeader) -> None:
        """The parent has accepted a sum."""
        self._collector.acknowledged(header.task.run, header.task.round)

    def runs_held(self) -> list[str]:
        """The parent's runs that have not ended here: it is asked how they go on."""
        return self._collector.held()

    def heard(self, verdict: fleet_pb2.SiteVerdict) -> None:
        """The parent says which sums of a run counted."""
        settling = asyncio.ensure_future(
            self._collector.settle(verdict.run, verdict.counted, verdict.over, ended=verdict.ended)
        )
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)


class SiteGate:
    """Declines tasks that are for a device: the parent does not know that this client is a site.

    Notes when the other ones come, since their deadlines count from then.
    """

    def __init__(self) -> None:
        self._came: dict[str, tuple[int, float]] = {}

    def came_at(self, run: str, number: int) -> float:
        """When the task of a round came, monotonic seconds; now if that is not known."""
        known, at = self._came.get(run, (number, time.monotonic()))
        return at if known == number else time.monotonic()

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline an offer; None to accept."""
        if offer.HasField("site"):
            self._came[offer.key.run] = offer.key.round, time.monotonic()
            return None
        return (
            "this client is a server that sums for its devices, and got the task of a device: "
            "enrol it by a token with --devices."
        )
