"""The tasks that a client has accepted: from an offer to an update that the server acknowledged.

A task outlives the connection: training continues while the network is down, and a finished update
is sent until the server has it or withdraws the task.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.client.agent.condition_watch import ConditionLost, ConditionWatch
from fedloom.client.agent.downloads import ModelDownloads
from fedloom.client.agent.masked_tasks import MaskedTaskError, MaskedWork
from fedloom.client.agent.task_run import OutOfTimeError, checkpoints_of, task_from_message
from fedloom.client.agent.task_runner import (
    CodeError,
    TaskOrder,
    TaskRunner,
    TrainingProcessError,
    located,
    reasons,
)
from fedloom.client.api import Task
from fedloom.client.budgets import Budgets, Pace
from fedloom.client.gates import Able, Gate, Objection, first_objection
from fedloom.client.network import transfer
from fedloom.client.network.connection import Connection
from fedloom.client.network.off_loop import off_loop
from fedloom.client.offers.checks import check_offer, is_run
from fedloom.client.offers.signature import unsigned
from fedloom.client.owner.journal_entries import account
from fedloom.client.owner.policy import Policy, PolicyError, PolicyFile
from fedloom.client.owner.policy_gate import PolicyGate
from fedloom.client.owner.update_check import check_leaving
from fedloom.client.state.model_check import UnfitError
from fedloom.client.state.store import ClientStore
from fedloom.client.training.checkpoints import Interruptions
from fedloom.client.training.progress import TrainingProgress
from fedloom.protocol import tracing
from fedloom.protocol.errors import Code, FedloomError, Refusal, UsageError, printable
from fedloom.protocol.tracing import Span, Tracer
from fedloom.protocol.transport.chunk_size import Chunks
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

TaskId = tuple[str, int]

MAX_TASKS = 8
"""Tasks a client holds at once: one in training, the others uploading or finishing."""


class TaskQueue:
    """Accepts offers and runs their tasks, one training at a time.

    Args:
        runner: runs the author's code.
        connection: to the server.
        store: of models and updates.
        chunks: sizes of an upload's messages.
        gates: asked, in order, before the model of an offer is downloaded.
        watch: checks the device's conditions until there is an update.
        rules: the owner's policy, asked before all gates; None allows everything.
        interruptions: checkpoints, and how long to wait for a training to stop.
        budgets: limits of resources.
        tracer: records spans.

    Attributes:
        idle: set while no task is held.
        busy: set while one is.
    """

    def __init__(
        self,
        runner: TaskRunner,
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
        self._runner = runner
        self._connection = connection
        self._store = store
        self._chunks = chunks
        self._rules = rules or PolicyGate(PolicyFile(None), store.directory)
        self._masked = MaskedWork(connection, store, self._rules.policy, self._upload_masked)
        self._gates: tuple[Gate, ...] = (Able(runner), self._rules, self._masked, *gates)
        self._watch = watch or ConditionWatch()
        self._interruptions = interruptions or Interruptions()
        self._budgets = budgets or Budgets()
        self._tracer = tracer or Tracer()
        self._downloads = ModelDownloads(
            connection,
            store,
            pace=Pace(self._budgets.download_mbit_s),
            tracer=self._tracer,
            refused=self._refused,
        )
        self._up = Pace(self._budgets.upload_mbit_s)
        self._work: dict[TaskId, asyncio.Task[None]] = {}
        self._tasks: dict[TaskId, Task] = {}
        self._tries: dict[TaskId, int] = {}
        self._models: dict[TaskId, bytes] = {}  # that came with offers, until they are stored
        self._turn = asyncio.Lock()
        self.idle, self.busy = asyncio.Event(), asyncio.Event()
        self.idle.set()
        self._reports: set[asyncio.Task[None]] = set()

    def at_work(self) -> Collection["asyncio.Task[None]"]:
        """The running tasks."""
        return self._work.values()

    async def asked(
        self,
        key: fleet_pb2.TaskKey,
        offer: fleet_pb2.Task | fleet_pb2.SignedOffer,
        traceparent: str = "",
        model: bytes = b"",
    ) -> None:
        """Accept an offer, or decline it with a reason.

        Args:
            key: of its task.
            offer: as it came.
            traceparent: of the round.
            model: that came with it; b"" for none.
        """
        try:
            with tracing.under(tracing.checked(traceparent)):
                await self._offered(self._verified(offer), model)
        except Refusal as refusal:
            self._refused(key, f"an offer: {refusal.code}: {refusal}")
            if (key.run, key.round) not in self._work:  # the key of an unverified offer is no proof
                await self._reply(key, declined=f"{refusal.code}: {refusal}")
        except Exception as error:
            # A custom gate or the disk failed; the agent keeps running.
            log.exception("the offer of round %d of %s could not be checked", key.round, key.run)
            if (key.run, key.round) not in self._work:
                why = f"the device could not check the offer: {type(error).__name__}."
                await self._decline(key, Objection(why))

    def _refused(self, key: fleet_pb2.TaskKey, what: str) -> None:
        log.warning("refused %s", what)
        here = self._connection
        self._store.journal.note(
            "refused",
            f"Refused {printable(what)}",
            run=printable(key.run, 128),
            round=key.round,
            server=here.server,
        )

    def _verified(self, offer: fleet_pb2.Task | fleet_pb2.SignedOffer) -> fleet_pb2.Task:
        """The task of an offer; refuses what the federation did not sign for this connection."""
        trust = self._connection.trust
        if isinstance(offer, fleet_pb2.SignedOffer):
            if trust is None:
                raise Refusal(
                    Code.BAD_SIGNATURE, "The offer is signed, but this client connects without TLS."
                )
            return trust.open(offer)
        if trust is not None:
            raise unsigned()
        return offer

    async def _offered(self, offer: fleet_pb2.Task, model: bytes) -> None:
        key = (offer.key.run, offer.key.round)
        if self._is_running(key) and offer.masking.attempt > self._tries[key]:
            await self._masked.settled(key)
            if self._masked.body_left(key):
                why = "the masked update of an earlier try has left, and its session is not closed."
                await self._decline(offer.key, Objection(why))
                return
            self._cancel(key)
        if not self._is_running(key):
            check_offer(offer)
            try:
                task = task_from_message(offer, self._connection.name)
            except FedloomError as error:
                raise Refusal(Code.MALFORMED, str(error)) from error
            if objection := await self._objection(key, offer):
                await self._decline(offer.key, objection)
                return
            self._rules.took(offer)
            checkpoints = checkpoints_of(offer, self._store, self._budgets, self._interruptions)
            task = replace(task, checkpoints=checkpoints)
            self._tasks[key] = task
            self._tries[key] = offer.masking.attempt
            self._models[key] = model
            self._start(key, self._traced(offer, task))
        await self._reply(offer.key)

    def _start(self, key: TaskId, coroutine: Coroutine[Any, Any, None]) -> None:
        work = asyncio.ensure_future(coroutine)
        self._work[key] = work
        self.idle.clear()
        self.busy.set()
        work.add_done_callback(lambda _: self._forget(key))

    def _is_running(self, key: TaskId) -> bool:
        return key in self._tasks and not self._tasks[key].dropped

    async def _objection(self, key: TaskId, offer: fleet_pb2.Task) -> Objection | None:
        if objection := await self._runner.objection():
            return objection
        if len(self._work) >= MAX_TASKS:
            return Objection(f"this device already has {MAX_TASKS} tasks.")
        if key in self._work:  # it was withdrawn and is offered again
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

    def _forget(self, key: TaskId) -> None:
        self._work.pop(key, None)
        self._tasks.pop(key, None)
        self._tries.pop(key, None)
        self._models.pop(key, None)
        if not self._work:
            self.busy.clear()
            self.idle.set()

    def withdrawn(self, withdraw: fleet_pb2.Withdraw) -> None:
        """Cancel a task that the server withdrew."""
        key = (withdraw.task.run, withdraw.task.round)
        if not is_run(key[0]):
            self._refused(withdraw.task, "a withdrawal whose run id is malformed")
            return
        why = printable(withdraw.reason)
        log.info("round %d of %s was withdrawn: %s", key[1], key[0], why)
        if self._masked.body_left(key):
            self._note(
                "withdrawn",
                key,
                f"The server withdrew {_of(key)}: {why} Its masked update has begun to leave, so "
                "the session goes on.",
            )
            return
        if key in self._work:
            self._note("withdrawn", key, f"The server withdrew {_of(key)}: {why}")
        self._cancel(key)
        self._drop(key)

    def masking_step(self, step: fleet_pb2.MaskingStep) -> None:
        """Take a step of a masking session; without one, finish an upload at most."""
        key = (step.task.run, step.task.round)
        if not is_run(key[0]):
            self._refused(step.task, "a masking step whose run id is malformed")
        elif self._masked.take(step):
            return
        elif step.HasField("shares") and key not in self._work and self._connection.trust:
            self._start(key, self._finish_upload(key, step))
        else:
            self._no_session(step)

    async def ask_verdicts(self) -> None:
        """Ask how runs go on that this site still holds."""
        if held := self._runner.runs_held():
            asked = fleet_pb2.SiteRuns(runs=held)
            await self._connection.send(fleet_pb2.ClientMessage(site=asked))

    def heard(self, verdict: fleet_pb2.SiteVerdict) -> None:
        """Pass on which sums of a run counted."""
        if is_run(verdict.run):
            self._runner.heard(verdict)

    def _no_session(self, step: fleet_pb2.MaskingStep) -> None:
        what = step.WhichOneof("kind") or "an unknown step"
        self._refused(
            step.task,
            f"{what} of a masking session that this process has no secrets of: it has left it, or "
            "was restarted, and signs and reveals nothing.",
        )

    async def _finish_upload(self, key: TaskId, step: fleet_pb2.MaskingStep) -> None:
        """Send the rest of a masked body that was on its way before a restart."""
        try:
            if not await self._masked.tasks.finish_upload(step):
                self._no_session(step)
                return
            self._note("accepted", key, f"The server has the masked update of {_of(key)}.")
        except FedloomError as error:
            self._note("rejected", key, f"The server rejected the update of {_of(key)}: {error}")
        self._drop(key)

    def reconnected(self) -> None:
        """Repeat what may have been lost with the former connection."""
        self._masked.reconnected()

    def _drop(self, key: TaskId) -> None:
        """Remove the files of a finished round; a disk error leaves them."""
        try:
            if key in self._tasks:
                self._tasks[key].checkpoints.close()
            self._store.remove_round(*key)
        except OSError as error:
            log.warning("files of round %d of %s could not be removed: %s", key[1], key[0], error)

    def _cancel(self, key: TaskId) -> None:
        # Only once: a second cancel would end the wait for the training, not the training.
        if key in self._tasks and not self._tasks[key].dropped:
            self._tasks[key].stop()
            self._work[key].cancel()
        elif key in self._work and key not in self._tasks:  # an upload after a restart
            self._work[key].cancel()

    async def stop(self) -> None:
        """Cancel all tasks and wait for the training code to finish its step."""
        for key in list(self._work):
            self._cancel(key)
        if self._work:
            await asyncio.wait(list(self._work.values()), timeout=self._interruptions.stop_s)

    async def _traced(self, offer: fleet_pb2.Task, task: Task) -> None:
        name = self._connection.name
        with self._tracer.span("task", run=task.run, round=task.round, client=name) as span:
            await self._do(offer, task, span)

    async def _do(self, offer: fleet_pb2.Task, task: Task, span: Span) -> None:
        """Run one task, from the model to the acknowledged update."""
        key = (task.run, task.round)
        try:
            header = await self._watch.over(self._update(offer, task))
            policy = await off_loop(header.size_bytes, self._check_leaving, offer, header)
            if offer.HasField("masking"):
                await self._send_masked(offer, header, policy)
                return
            self._account(header, offer, policy)
            with self._tracer.span("upload", bytes=header.size_bytes):
                await self._connection.persist(lambda: self._upload(header))
            self._runner.sent(header)
            name = self._connection.name
            log.info("%s: update of round %d of %s accepted", name, task.round, task.run)
            self._note("accepted", key, f"The server accepted the result of {_of(key)}.")
            self._drop(key)
            self._rules.answered(offer)
        except Refusal as refusal:
            log.warning("round %d of %s: %s: %s", task.round, task.run, refusal.code, refusal)
            span.end(refusal.code.value)
            why = f"{refusal.code}: {refusal}"
            self._note("rejected", key, f"The server rejected the result of {_of(key)}: {why}")
            self._drop(key)
            self._rules.answered(offer)
        except (PolicyError, MaskedTaskError) as error:
            log.warning("round %d of %s: nothing was sent: %s", task.round, task.run, error)
            kind = error.kind if isinstance(error, MaskedTaskError) else "policy"
            self._note("declined", key, printable(f"Sent nothing for {_of(key)}: {error}", 1000))
            self._drop(key)
            await self._failed(offer, kind, f"{error}")
        except UnfitError as error:
            self._refused(offer.key, f"the model for {_of(key)}: {error}")
            await self._failed(offer, "model", f"refused by the device: {error}")
        except OutOfTimeError as late:
            await self._decline(offer.key, Objection(str(late)))
        except ConditionLost as lost:
            await self._decline(offer.key, Objection(str(lost), self._watch.again_s))
        except asyncio.CancelledError:
            self._store.remove_unfinished(*key)
            raise
        except Exception as error:  # noqa: BLE001 - the author's code; it is logged
            self._store.remove_unfinished(*key)
            span.end(type(error).__name__)
            await self._training_failed(offer, task, error)

    async def _send_masked(
        self, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader, policy: Policy
    ) -> None:
        event, text, again = await self._masked.send(offer, header, policy)
        key = (offer.key.run, offer.key.round)
        log.info("%s", text)
        self._note(event, key, text)
        if not again:
            self._drop(key)
        self._rules.answered(offer)

    async def _training_failed(self, offer: fleet_pb2.Task, task: Task, error: Exception) -> None:
        _log_failure(task, error)
        key = (task.run, task.round)
        short, full = reasons(error)
        reason = full if self._sends_error_messages() else short
        reason = "training" if offer.HasField("masking") else reason
        sent = "this" if reason == full else reason
        text = f"The training of {_of(key)} failed: {full} (reported to the server: {sent})"
        self._note("failed", key, printable(text))
        await self._failed(offer, "training", reason)

    async def _failed(self, offer: fleet_pb2.Task, kind: str, reason: str) -> None:
        """Tell the server why a task failed; of a masked one, the kind alone."""
        said = kind if offer.HasField("masking") else printable(reason, 500)
        failed = fleet_pb2.TaskFailed(task=offer.key, reason=said)
        await self._connection.send(fleet_pb2.ClientMessage(task_failed=failed))

    def _sends_error_messages(self) -> bool:
        try:
            return self._rules.policy.current().leaves.error_messages
        except UsageError:
            return False

    def _check_leaving(self, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader) -> Policy:
        """Check the update against the current policy before it is sent."""
        try:
            policy = self._rules.policy.current()
        except UsageError as error:
            raise PolicyError("the device's policy cannot be read, so nothing is sent.") from error
        if not offer.HasField("masking"):  # one of this run may have been masked meanwhile
            objection = self._masked.objection(offer)
            if objection is not None:
                raise PolicyError(objection)
        body = self._store.body_path(header.task.run, header.task.round)
        check_leaving(policy, offer, header, body)
        return policy

    def _account(
        self, header: fleet_pb2.UpdateHeader, offer: fleet_pb2.Task, policy: Policy
    ) -> None:
        """Journal what is about to be sent."""
        here = self._connection
        federation = "" if here.trust is None else here.trust.federation
        text, facts = account(header, offer, here.server, federation, policy.guard(offer))
        self._store.journal.note("sent", text, **facts)

    def _note(self, event: str, key: TaskId, text: str) -> None:
        self._store.journal.note(
            event, text, run=key[0], round=key[1], server=self._connection.server
        )

    async def _update(self, offer: fleet_pb2.Task, task: Task) -> fleet_pb2.UpdateHeader:
        """The update for a task: one finished before a restart, or a new one."""
        masked = offer.HasField("masking")
        stored = self._masked.tasks if masked else self._store
        unsent = await off_loop(offer.model.size_bytes, stored.unsent, offer)
        if unsent is not None:
            log.info("round %d of %s: sending the update made before", task.round, task.run)
            return unsent
        async with self._turn:  # a withdrawn task's code may still be running
            self._store.remove_other_rounds(self._work)
            await self._downloads.obtain(offer, self._models.pop((task.run, task.round), b""))
            if masked:
                await self._masked.begin(offer)
            policy = self._rules.policy.current()
            order = TaskOrder(offer, task, self._connection.name, policy)
            with self._reporting(offer, task, policy), self._tracer.span("train"):
                return await self._runner.train(order)

    @contextmanager
    def _reporting(self, offer: fleet_pb2.Task, task: Task, policy: Policy) -> Iterator[None]:
        """Send the training's progress to the server while it runs and the connection is up."""
        loop = asyncio.get_running_loop()
        hidden = offer.HasField("privacy") or offer.HasField("masking")
        private = hidden or not policy.metrics

        def send(note: TrainingProgress) -> None:
            if task.should_stop() or not self._connection.connected.is_set():
                return
            loss = None if private else note.loss
            said = fleet_pb2.Progress(task=offer.key, fraction=note.fraction, loss=loss)
            report = asyncio.ensure_future(
                self._connection.send(fleet_pb2.ClientMessage(progress=said))
            )
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)

        def heard(note: TrainingProgress) -> None:
            if not self._reports:  # else the last report is still being sent
                with suppress(RuntimeError):  # the loop has closed
                    loop.call_soon_threadsafe(send, note)

        with task.reporting(heard):
            yield

    async def _upload_masked(self, header: fleet_pb2.UpdateHeader, body: Path) -> None:
        with self._tracer.span("upload", bytes=header.size_bytes):
            await self._connection.persist(lambda: self._upload(header, body))

    async def _upload(self, header: fleet_pb2.UpdateHeader, body: Path | None = None) -> None:
        here = self._connection
        async with here.channel_for(header.size_bytes) as channel:
            await transfer.upload(
                channel, header, self._store, here.server, here.metadata + tracing.metadata(),
                body=body, chunks=self._chunks, pace=self._up,
            )  # fmt: skip


def _log_failure(task: Task, error: Exception) -> None:
    """Log why training code failed, with its line and its own part of the traceback."""
    if isinstance(error, TrainingProcessError):
        log.error("round %d of %s: %s", task.round, task.run, error)
        return
    if isinstance(error, CodeError):  # its note has the traceback of the code
        error.with_traceback(None)
    failed = "round %d of %s: the client's code failed: %s"
    log.error(failed, task.round, task.run, located(error), exc_info=error)


def _of(key: TaskId) -> str:
    return f"round {key[1]} of {key[0]}"
