"""The tasks that a client has taken: from an offer to an update that the server has.

Work outlives the connection: a task goes on while the network is away, and an update that was made
is sent until the server has it or no longer wants it.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from fedloom.client.agent.condition_watch import ConditionLost, ConditionWatch
from fedloom.client.agent.task_run import OutOfTimeError, TaskRun, task_from_message
from fedloom.client.agent.training_thread import TrainingThread, words
from fedloom.client.api import Client, Task
from fedloom.client.budgets import Budgets, Pace, room_beside
from fedloom.client.gates import Able, Gate, Objection, first_objection
from fedloom.client.network import transfer
from fedloom.client.network.connection import Connection
from fedloom.client.offers.checks import check_offer, is_run
from fedloom.client.offers.replay_guard import ReplayGuard
from fedloom.client.offers.signature import unsigned
from fedloom.client.owner.journal_entries import account
from fedloom.client.owner.policy import Policy, PolicyError, PolicyFile
from fedloom.client.owner.policy_gate import PolicyGate
from fedloom.client.owner.update_check import check_leaving
from fedloom.client.state.model_check import UnfitError, check_room
from fedloom.client.state.store import KEEP_MODELS, ClientStore
from fedloom.client.training.checkpoints import Checkpoints, Interruptions
from fedloom.client.training.progress import TrainingProgress
from fedloom.protocol import tracing
from fedloom.protocol.errors import (
    Code,
    FedloomError,
    IntegrityError,
    Refusal,
    UsageError,
    printable,
)
from fedloom.protocol.tracing import Span, Tracer
from fedloom.protocol.transport.chunk_size import Chunks
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

TaskId = tuple[str, int]

MAX_TASKS = 8
"""That a client has taken: one that it works on, those that are being sent or are ending."""
MAX_LIES = 3
"""How often other bytes than promised may come before they are taken to be meant."""
SLACK_BYTES = 1 << 16
"""By which differences may be longer than the model that they lead to."""


class TaskQueue:
    """The work of one client.

    Args:
        client: the author's code.
        connection: to the server.
        store: of models and updates.
        chunks: how large the messages of an upload are.
        gates: asked, in order, before anything of an offer is downloaded.
        watch: kept over the work until there is an update.
        rules: the owner's, which are asked before all gates; none: whatever is asked is done.
        interruptions: how work is cut short.
        budgets: what the work may use.
        tracer: of what takes how long.

    Attributes:
        idle: while there is nothing to do.
        busy: while there is something.
    """

    def __init__(
        self,
        client: Client,
        connection: Connection,
        store: ClientStore,
        chunks: Chunks,
        *,
        gates: Sequence[Gate] = (),
        watch: ConditionWatch | None = None,
        rules: PolicyGate | None = None,
        interruptions: Interruptions | None = None,
        budgets: Budgets | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._client = client
        self._connection = connection
        self._store = store
        self._chunks = chunks
        self._rules = rules or PolicyGate(PolicyFile(None), store.directory)
        self._gates: tuple[Gate, ...] = (Able(client), self._rules, *gates)
        self._answers = ReplayGuard(store.directory)
        self._watch = watch or ConditionWatch()
        self._interruptions = interruptions or Interruptions()
        self._budgets = budgets or Budgets()
        self._tracer = tracer or Tracer()
        self._down = Pace(self._budgets.download_mbit_s)
        self._up = Pace(self._budgets.upload_mbit_s)
        self._work: dict[TaskId, asyncio.Task[None]] = {}
        self._tasks: dict[TaskId, Task] = {}
        self._turn = asyncio.Lock()
        self._trainer = TrainingThread()
        self.idle, self.busy = asyncio.Event(), asyncio.Event()
        self.idle.set()
        self._telling: set[asyncio.Task[None]] = set()

    def at_work(self) -> Collection["asyncio.Task[None]"]:
        """What is being done."""
        return self._work.values()

    async def asked(
        self,
        key: fleet_pb2.TaskKey,
        offer: fleet_pb2.Task | fleet_pb2.SignedOffer,
        traceparent: str = "",
    ) -> None:
        """Take up an offer that is good, or say why not."""
        try:
            with tracing.under(tracing.checked(traceparent)):
                await self._offered(*self._verified(offer))
        except Refusal as refusal:
            self._refused(key, f"an offer: {refusal.code}: {refusal}")
            if (key.run, key.round) not in self._work:  # nobody vouches for what a bad one names
                await self._reply(key, declined=f"{refusal.code}: {refusal}")
        except Exception as error:
            # A gate of the owner's own, a disk: whatever it is, the agent lives.
            log.exception("round %d of %s could not be looked at", key.round, key.run)
            if (key.run, key.round) not in self._work:
                why = f"the device could not look at the offer: {type(error).__name__}."
                await self._decline(key, Objection(why))

    def _refused(self, key: fleet_pb2.TaskKey, what: str) -> None:
        """Put down that the server gave something that is not used."""
        log.warning("refused %s", what)
        here = self._connection
        self._store.journal.note(
            "refused",
            f"Refused {printable(what)}",
            run=printable(key.run, 128),
            round=key.round,
            server=here.server,
        )

    def _verified(
        self, offer: fleet_pb2.Task | fleet_pb2.SignedOffer
    ) -> tuple[fleet_pb2.Task, int]:
        """The task in an offer that the federation's key signed for this client, and when.

        Raises:
            Refusal: it did not.
        """
        trust = self._connection.trust
        if isinstance(offer, fleet_pb2.SignedOffer):
            if trust is None:
                raise Refusal(Code.BAD_SIGNATURE, "Expected no signatures without TLS, got one.")
            opened = trust.open(offer)
            return opened.task, opened.issued_us
        if trust is not None:
            raise unsigned()
        return offer, time.time_ns() // 1000

    async def _offered(self, offer: fleet_pb2.Task, issued_us: int) -> None:
        key = (offer.key.run, offer.key.round)
        if not self._goes_on(key):
            check_offer(offer)
            self._answers.check(*key, issued_us)
            try:
                task = task_from_message(offer, self._connection.name)
            except FedloomError as error:
                raise Refusal(Code.MALFORMED, str(error)) from error
            if objection := await self._objection(key, offer):
                await self._decline(offer.key, objection)
                return
            self._rules.took(offer)
            task = replace(task, checkpoints=self._checkpoints(offer))
            self._tasks[key] = task
            work = asyncio.ensure_future(self._traced(offer, task))
            self._work[key] = work
            self.idle.clear()
            self.busy.set()
            work.add_done_callback(lambda _: self._forget(key))
        self._answers.saw(offer.key.run, issued_us)
        await self._reply(offer.key)

    def _goes_on(self, key: TaskId) -> bool:
        """Whether a task is being done, and not only ending because nobody wants it."""
        return key in self._tasks and not self._tasks[key].dropped

    async def _objection(self, key: TaskId, offer: fleet_pb2.Task) -> Objection | None:
        if objection := await self._trainer.objection():
            return objection
        if len(self._work) >= MAX_TASKS:
            return Objection(f"this device has {MAX_TASKS} tasks already.")
        if key in self._work:  # it was withdrawn, and is wanted again
            await asyncio.wait([self._work[key]])
        return await asyncio.to_thread(first_objection, self._gates, offer)

    async def _decline(self, key: fleet_pb2.TaskKey, objection: Objection) -> None:
        log.info("round %d of %s is declined: %s", key.round, key.run, objection.reason)
        text = f"Took no part in round {key.round} of {key.run}: {printable(objection.reason)}"
        self._store.journal.note(
            "declined",
            text,
            run=key.run,
            round=key.round,
            server=self._connection.server,
            reason=objection.reason,
        )
        await self._reply(key, objection.reason, objection.again_s)

    async def _reply(
        self, key: fleet_pb2.TaskKey, declined: str = "", again_s: float = 0.0
    ) -> None:
        reply = fleet_pb2.OfferReply(
            task=key, accepted=not declined, reason=printable(declined, 500), again_s=again_s
        )
        await self._connection.send(fleet_pb2.ClientMessage(offer_reply=reply))

    def _checkpoints(self, offer: fleet_pb2.Task) -> Checkpoints:
        settings = self._interruptions
        path = self._store.checkpoint_path(offer) if settings.checkpoints else None
        room = partial(room_beside, self._budgets, self._store, offer)
        return Checkpoints(path, settings.checkpoint_s, room=room)

    def _forget(self, key: TaskId) -> None:
        self._work.pop(key, None)
        self._tasks.pop(key, None)
        if not self._work:
            self.busy.clear()
            self.idle.set()

    def withdrawn(self, withdraw: fleet_pb2.Withdraw) -> None:
        """Drop a task that nobody wants any more."""
        key = (withdraw.task.run, withdraw.task.round)
        if not is_run(key[0]):
            self._refused(withdraw.task, "the withdrawal of a run that cannot be one")
            return
        why = printable(withdraw.reason)
        log.info("round %d of %s is no longer wanted: %s", key[1], key[0], why)
        if key in self._work:
            self._note("withdrawn", key, f"Round {key[1]} of {key[0]} is no longer wanted: {why}")
            self._answers.settle(*key)
        self._cancel(key)
        self._drop(key)

    def _drop(self, key: TaskId) -> None:
        """Keep nothing of a round that is over. What a broken disk does not let go of stays."""
        try:
            if key in self._tasks:
                self._tasks[key].checkpoints.close()
            self._store.settle(*key)
        except OSError as error:
            log.warning("round %d of %s is over, but not removed: %s", key[1], key[0], error)

    def _settle(self, key: TaskId) -> None:
        """The round has this client's update, or wants none."""
        self._answers.settle(*key)
        self._drop(key)

    def _cancel(self, key: TaskId) -> None:
        # Once: a second time would end the wait for the training, and not the training.
        if key in self._tasks and not self._tasks[key].dropped:
            self._tasks[key].stop()
            self._work[key].cancel()

    async def stop(self) -> None:
        """End all work, as fast as the author's code ends its step."""
        for key in list(self._work):
            self._cancel(key)
        if self._work:
            await asyncio.wait(list(self._work.values()), timeout=self._interruptions.stop_s)

    async def _traced(self, offer: fleet_pb2.Task, task: Task) -> None:
        name = self._connection.name
        with self._tracer.span("task", run=task.run, round=task.round, client=name) as span:
            await self._do(offer, task, span)

    async def _do(self, offer: fleet_pb2.Task, task: Task, span: Span) -> None:
        """One task, from the model to the acknowledged update."""
        key = (task.run, task.round)
        try:
            header = await self._watch.over(self._update(offer, task))
            policy = await asyncio.to_thread(self._check_leaving, offer, header)
            self._account(header, offer, policy)
            with self._tracer.span("upload", bytes=header.size_bytes):
                await self._connection.persist(lambda: self._upload(header))
            name = self._connection.name
            log.info("%s: update of round %d of %s accepted", name, task.round, task.run)
            self._note("accepted", key, f"The server has what was sent for {_of(key)}.")
            self._settle(key)
            self._rules.answered(offer)
        except Refusal as refusal:
            log.warning("round %d of %s: %s: %s", task.round, task.run, refusal.code, refusal)
            span.end(refusal.code.value)
            why = f"{refusal.code}: {refusal}"
            self._note("rejected", key, f"The server did not want what was for {_of(key)}: {why}")
            self._settle(key)
            self._rules.answered(offer)
        except PolicyError as error:
            log.warning("round %d of %s: kept here: %s", task.round, task.run, error)
            self._note("declined", key, f"Sent nothing for {_of(key)}: {error}")
            self._drop(key)
            await self._failed(offer.key, f"{error}")
        except UnfitError as error:
            self._refused(offer.key, f"what came for {_of(key)}: {error}")
            await self._failed(offer.key, f"refused by the device: {error}")
        except OutOfTimeError as late:
            await self._decline(offer.key, Objection(str(late)))
        except ConditionLost as lost:
            await self._decline(offer.key, Objection(str(lost), self._watch.again_s))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("round %d of %s: the client's code failed", task.round, task.run)
            span.end(type(error).__name__)
            said = f"{type(error).__name__}: {words(error)}"
            reason = said if self._tells_errors() else type(error).__name__
            told = "this" if reason == said else reason
            text = (
                f"Sent nothing for {_of(key)}, which failed: {said} (the server was told: {told})"
            )
            self._note("failed", key, printable(text))
            await self._failed(offer.key, reason)

    async def _failed(self, key: fleet_pb2.TaskKey, reason: str) -> None:
        failed = fleet_pb2.TaskFailed(task=key, reason=printable(reason, 500))
        await self._connection.send(fleet_pb2.ClientMessage(task_failed=failed))

    def _tells_errors(self) -> bool:
        try:
            return self._rules.policy.current().leaves.error_messages
        except UsageError:
            return False

    def _check_leaving(self, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader) -> Policy:
        """The last look at what is about to leave, by the policy that holds now."""
        try:
            policy = self._rules.policy.current()
        except UsageError as error:
            raise PolicyError("the device's policy cannot be read, so nothing leaves.") from error
        body = self._store.body_path(header.task.run, header.task.round)
        check_leaving(policy, offer, header, body)
        return policy

    def _account(
        self, header: fleet_pb2.UpdateHeader, offer: fleet_pb2.Task, policy: Policy
    ) -> None:
        """Put down what is about to leave."""
        here = self._connection
        federation = "" if here.trust is None else here.trust.federation
        text, facts = account(header, offer, here.server, federation, policy.guard(offer))
        self._store.journal.note("sent", text, **facts)

    def _note(self, event: str, key: TaskId, text: str) -> None:
        self._store.journal.note(
            event, text, run=key[0], round=key[1], server=self._connection.server
        )

    async def _update(self, offer: fleet_pb2.Task, task: Task) -> fleet_pb2.UpdateHeader:
        """The update for a task: the one made before a restart, or a new one."""
        owed = await asyncio.to_thread(self._store.owed, offer)
        if owed is not None:
            log.info("round %d of %s: sending the update made before", task.round, task.run)
            return owed
        async with self._turn:  # a withdrawn task's code may still be ending
            self._store.settle_others(self._work)
            await self._advance(offer)
            for model in (m for m in (offer.model, offer.received) if m.digest):
                if not await asyncio.to_thread(self._store.has_model, model.digest):
                    await self._fetch(model)
                await asyncio.to_thread(self._store.check, model.digest, model is offer.model)
            policy = self._rules.policy.current()
            work = TaskRun(
                self._client, task, offer, self._connection.name, self._store, policy, self._budgets
            )
            with self._reporting(offer, task, policy), self._tracer.span("train"):
                return await self._trainer.run(work.run, task)

    @contextmanager
    def _reporting(self, offer: fleet_pb2.Task, task: Task, policy: Policy) -> Iterator[None]:
        """Pass on what the training says of itself, while it lasts and the server can hear it."""
        loop = asyncio.get_running_loop()
        private = offer.HasField("privacy") or not policy.metrics

        def send(note: TrainingProgress) -> None:
            if task.should_stop() or not self._connection.connected.is_set():
                return
            loss = None if private else note.loss
            said = fleet_pb2.Progress(task=offer.key, fraction=note.fraction, loss=loss)
            telling = asyncio.ensure_future(
                self._connection.send(fleet_pb2.ClientMessage(progress=said))
            )
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

        def heard(note: TrainingProgress) -> None:
            if not self._telling:  # else the last word is still waiting for the network
                with suppress(RuntimeError):  # the loop has closed: nobody waits
                    loop.call_soon_threadsafe(send, note)

        with task.reporting(heard):
            yield

    async def _advance(self, offer: fleet_pb2.Task) -> None:
        """Make the offered model from one that is here, where differences lead there.

        Where anything is amiss there is no harm done: the whole model is downloaded then.
        """
        store, steps = self._store, list(offer.differences)
        # The model that they lead from must stay while they come.
        store.keep = KEEP_MODELS + len(steps)
        if not steps or await asyncio.to_thread(store.has_model, offer.model.digest):
            return
        known = [await asyncio.to_thread(store.has_model, step.base) for step in steps]
        if not any(known):
            return
        if sum(step.difference.size_bytes for step in steps) > offer.model.size_bytes + SLACK_BYTES:
            return
        del steps[: len(known) - 1 - known[::-1].index(True)]  # from the newest that is here
        digests = [step.difference.digest for step in steps]
        try:
            for step in steps:
                await self._fetch(step.difference)
            base, digest = steps[0].base, offer.model.digest
            await asyncio.to_thread(store.advance, base, digests, digest)
        except Exception as error:  # noqa: BLE001 - these bytes are anybody's
            what = f"a difference that does not lead to the model: {error}"
            self._refused(offer.key, f"{what}. All of the model comes.")

    async def _fetch(self, model: fleet_pb2.ModelRef) -> None:
        """Download, as often as the network wants it; but lies of the server are found out."""
        lies = 0

        async def attempt() -> None:
            nonlocal lies
            try:
                await self._download(model)
            except IntegrityError as error:
                lies += 1
                if lies == MAX_LIES:
                    raise UnfitError(f"{error} So it was {lies} times.") from error
                raise

        check_room(self._store.directory, model.size_bytes)
        with self._tracer.span("download", bytes=model.size_bytes):
            await self._connection.persist(attempt)

    async def _download(self, model: fleet_pb2.ModelRef) -> None:
        here = self._connection
        async with here.channel_for(model.size_bytes) as channel:
            await transfer.download(
                channel, model, self._store, here.server, here.metadata, pace=self._down
            )

    async def _upload(self, header: fleet_pb2.UpdateHeader) -> None:
        here = self._connection
        async with here.channel_for(header.size_bytes) as channel:
            await transfer.upload(
                channel, header, self._store, here.server, here.metadata + tracing.metadata(),
                chunks=self._chunks, pace=self._up,
            )  # fmt: skip


def _of(key: TaskId) -> str:
    return f"round {key[1]} of {key[0]}"
