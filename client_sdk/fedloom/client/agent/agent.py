"""The agent on a device: connects to the server, runs the tasks it is offered, and reconnects.

Offers arrive on one stream, so nothing is polled. Reconnects back off with full jitter (M. Brooker,
"Exponential Backoff And Jitter", 2015), so that clients do not all return to a restarted server at
once. Hours without a connection are normal: one log line says that it is lost, one that it is back.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import grpc

from fedloom.client.agent import trim_memory
from fedloom.client.agent.condition_watch import ConditionWatch
from fedloom.client.agent.device_reports import DeviceReporter
from fedloom.client.agent.next_check_in import NextCheckIn
from fedloom.client.agent.task_queue import TaskQueue
from fedloom.client.agent.task_runner import TaskRunner
from fedloom.client.agent.training_process import Program, TrainingProcess
from fedloom.client.agent.training_thread import TrainingThread
from fedloom.client.api import Client
from fedloom.client.budgets import BudgetGate, Budgets, machine
from fedloom.client.conditions import ConditionGate
from fedloom.client.conditions.settings import Conditions
from fedloom.client.config import ClientConfig, load
from fedloom.client.gates import Gate
from fedloom.client.identity.renew import Renewal
from fedloom.client.network import transfer
from fedloom.client.network.connection import JITTER, Connection, UnreadableError, parsed
from fedloom.client.owner.policy import PolicyFile
from fedloom.client.owner.policy_gate import PolicyGate
from fedloom.client.state.health_file import HealthFile, keep_watchdog
from fedloom.client.state.process_lock import only_agent
from fedloom.client.state.store import ClientStore
from fedloom.client.training.ranks import ranks
from fedloom.protocol import tracing
from fedloom.protocol.errors import Code, Reaction, Refusal, UnavailableError, UsageError, printable
from fedloom.protocol.transport import methods
from fedloom.protocol.transport.chunk_size import Chunks

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.5
DIAGNOSE_EVERY = 16
"""Failed connects between two diagnoses, from the second failure on."""
REPORT_FAILURE_S = 1.0
"""Time that a broken site keeps running, so that the failure of its task reaches the server."""

TRIM_AFTER_S = 5.0
"""Idle time after which memory is returned to the system."""

LOOK_S = 30.0
"""Longest sleep until the next check-in is looked at again."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_TOO_LONG = (
    "Refused a message of the server: it is longer than the limit of "
    f"{methods.MAX_MESSAGE_BYTES} bytes."
)


class Agent:
    """One client of a federation.

    Args:
        client: your training code, which runs in a thread; or the program of another process.
        config: of the client.
        gates: asked, in order, before the model of an offer is downloaded.
        runner: makes what runs a client's code in this process.
    """

    def __init__(
        self,
        client: Client | Program,
        config: ClientConfig,
        gates: Sequence[Gate] = (),
        runner: Callable[[Client, ClientStore, Budgets], TaskRunner] = TrainingThread,
    ) -> None:
        self._config = config
        self._store = ClientStore(config.state_dir)
        self._connection = Connection(config, self._store, self._takes_bytes)
        chunks = Chunks(config.chunk_bytes)
        conditions = ConditionGate(config.conditions)
        policy = self._policy = PolicyFile(config.policy)
        self._has_gates = bool(gates)
        self._device = DeviceReporter(policy, self._connection, self._store.journal)
        tracer = tracing.tracer(config.tracing.endpoint, "fedloom-client")
        self._runner = (
            TrainingProcess(client, self._store, config.budgets, config.interruptions)
            if isinstance(client, Program)
            else runner(client, self._store, config.budgets)
        )
        budget = BudgetGate(config.budgets, self._store, resident=self._resident_bytes)
        self._tasks = TaskQueue(
            self._runner,
            self._connection,
            self._store,
            chunks,
            gates=[conditions, budget, *gates],
            rules=PolicyGate(policy, config.state_dir),
            watch=ConditionWatch.of(conditions, config.conditions),
            interruptions=config.interruptions,
            budgets=config.budgets,
            tracer=tracer,
        )
        self._tracer = tracer
        self._renewal = Renewal(
            connection=self._connection,
            store=self._store,
            busy=self._tasks.at_work,
            jitter=JITTER.random(),
            enrolment=config.enrolment,
        )
        self._health = HealthFile(config.state_dir, config.server)
        self._next_check_in = NextCheckIn(config.state_dir) if config.checks_in else None
        self._dismissed = False
        self._away = False
        self._rejected = False

    def _resident_bytes(self) -> int:
        return machine.resident_bytes() + self._runner.memory_bytes()

    def _takes_bytes(self) -> int:
        """The largest model to take with an offer: none if rules of this device may decline it."""
        config = self._config
        if self._has_gates or config.conditions != Conditions():
            return 0
        if config.budgets.download_mbit_s is not None:
            return 0
        try:
            return methods.OFFERED_MODEL_BYTES if self._policy.current().is_open else 0
        except UsageError:
            return 0

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            Refusal: the server refuses this client for good.
            UsageError: it is not enrolled, or another agent uses its state directory.
            FedloomError: the training code cannot be loaded.
        """
        with only_agent(self._store.directory):
            try:
                await self._runner.start()
                await self._run()
            finally:
                await self._runner.close()

    async def _run(self) -> None:
        attempt, longest = 0, 0.0
        self._health.begins()
        watchdog = asyncio.ensure_future(keep_watchdog())
        try:
            while True:
                await self._wait_for_check_in()
                self._connection.greeted = False
                begun = time.monotonic()
                await self._renew_if_expired()
                try:
                    await self._attend()
                except UnavailableError as error:
                    self._lost(error)
                except (OSError, ValueError) as error:  # of the disk, or of a library's parser
                    log.exception("the session failed")
                    self._lost(UnavailableError(f"{type(error).__name__}: {printable(str(error))}"))
                except Refusal as refusal:
                    if refusal.code.reaction is Reaction.STOP:
                        raise
                    self._rejected = refusal.code.reaction is Reaction.RENEW
                    log.warning("the server ended the session: %s", refusal)
                    self._health.waits()
                else:
                    continue  # to use a renewed certificate, or after a check-in
                # Sessions that the server ends at once count as failures.
                held = self._connection.greeted and time.monotonic() - begun >= longest
                attempt = 0 if held else attempt + 1
                if attempt % DIAGNOSE_EVERY == 2:
                    await self._diagnose()
                if self._next_check_in and self._tasks.idle.is_set() and self._next_check_in.lost():
                    continue
                longest = min(self._config.reconnect_s, FIRST_BACKOFF_S * 2 ** min(attempt, 16))
                await asyncio.sleep(JITTER.uniform(0, longest))
        finally:
            self._health.ends()
            watchdog.cancel()
            await self._tasks.stop()
            if self._tracer.on:
                await asyncio.to_thread(self._tracer.close)

    async def _wait_for_check_in(self) -> None:
        """Wait until the next check-in is due, if this device checks in and has no task."""
        due = self._next_check_in
        if due is None or not due.left_s() or not self._tasks.idle.is_set():
            return
        at = due.due_at()
        log.info("checks in next at %s", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)))
        self._health.due(at)
        while left_s := due.left_s():  # noqa: ASYNC110 - a time, no event
            # Not all at once: while a device is suspended, this sleep does not go on.
            await asyncio.sleep(min(left_s, LOOK_S))

    async def _leave_when_idle(self, stream: Any, next_s: float) -> None:
        """End a check-in once the last task is done."""
        assert self._next_check_in is not None
        await self._tasks.idle.wait()
        self._next_check_in.told(next_s)
        self._dismissed = True
        stream.cancel()

    async def _renew_if_expired(self) -> None:
        if self._config.plaintext:
            return
        try:
            await self._renewal.renew_if_expired(rejected=self._rejected)
            self._rejected = False
        except (UnavailableError, Refusal) as error:
            if isinstance(error, Refusal) and error.code.reaction is not Reaction.RESEND:
                raise
            # The clock of this device may be wrong, so connecting is tried all the same.
            log.log(self._level(), "the expired certificate was not renewed: %s", error)

    async def _diagnose(self) -> None:
        """If the server rejects the certificate, treat it as expired: this clock may be slow."""
        refusal = await self._connection.diagnose()
        if refusal is not None and refusal.code is Code.NO_CERTIFICATE:
            self._rejected = bool(self._config.enrolment)

    def _level(self) -> int:
        """INFO for the first failure only: a device may be offline for days."""
        first = not self._away or self._connection.greeted
        return logging.INFO if first else logging.DEBUG

    def _lost(self, error: UnavailableError) -> None:
        log.log(self._level(), "not connected: %s", error)
        self._away = True
        self._health.waits()

    async def _attend(self) -> None:
        """Connect and listen until the stream ends or the certificate is due for renewal."""
        async with self._connection.attending() as (channel, stream):
            renewal = asyncio.ensure_future(
                asyncio.sleep(0)
                if self._config.plaintext
                else self._renewal.when_due(channel, stream)
            )
            beside: list[asyncio.Task[None]] = []
            self._dismissed = False
            try:
                await self._renewal.learn_key(channel)
                await self._connection.greet(stream)
                self._away = False
                self._health.attends()
                if self._next_check_in:
                    self._next_check_in.attends()
                self._tasks.reconnected()
                await self._tasks.ask_verdicts()
                every_s = self._connection.device_every_s
                idle, busy = self._tasks.idle, self._tasks.busy
                trimming = trim_memory.trim_when_idle(idle, busy, TRIM_AFTER_S)
                beside.append(asyncio.ensure_future(trimming))
                beside.append(asyncio.ensure_future(self._device.send_all(every_s)))
                await self._listen(stream, beside)
            except UnreadableError as error:
                self._store.journal.note("refused", f"{error}", server=self._config.server)
                raise
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                if await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self._store.journal.note("refused", _TOO_LONG, server=self._config.server)
                raise await transfer.failure(stream, self._config.server) from error
            except asyncio.CancelledError:
                current = asyncio.current_task()
                ours = renewal.done() or self._dismissed
                if not ours or (current is not None and current.cancelling()):
                    raise
                # Only the stream was cancelled: for the new certificate, or until the check-in.
            finally:
                renewal.cancel()
                for task in beside:
                    task.cancel()

    async def _listen(self, stream: Any, beside: list[asyncio.Task[None]]) -> None:
        while (raw := await stream.read()) is not grpc.aio.EOF:
            message = parsed(raw, self._config.server)
            model = await self._model(stream) if message.model_follows else b""
            match message.WhichOneof("kind"):
                case "offer":
                    offer = message.offer
                    await self._tasks.asked(offer.key, offer, message.traceparent, model)
                case "signed_offer":
                    signed = message.signed_offer
                    await self._tasks.asked(signed.task, signed, message.traceparent, model)
                case "withdraw":
                    self._tasks.withdrawn(message.withdraw)
                case "masking":
                    self._tasks.masking_step(message.masking)
                case "site":
                    self._tasks.heard(message.site)
                case "goodbye" if self._next_check_in:
                    next_s = message.goodbye.next_check_in_s
                    beside.append(asyncio.ensure_future(self._leave_when_idle(stream, next_s)))
                case _:
                    log.debug("ignored a message of an unknown kind")
            del raw, model  # an idle client keeps no model in memory
        raise await transfer.failure(stream, self._config.server)

    async def _model(self, stream: Any) -> bytes:
        """The model that follows its offer."""
        model = await stream.read()
        if model is grpc.aio.EOF:
            raise await transfer.failure(stream, self._config.server)
        return bytes(model)


def run(client: Client, config: str | Path = "client.toml", gates: Sequence[Gate] = ()) -> None:
    """Connect to the server and run its tasks until SIGTERM or SIGINT, training in this process.

    Under torchrun all ranks are one client: rank 0 connects, the others train with it.

    Logs to standard error unless logging is already set up.

    Args:
        client: your code.
        config: path of the settings that `fedloom client enroll` wrote.
        gates: your own, asked before an offer is accepted.

    Raises:
        FedloomError: the settings are wrong, or the server refuses this client.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    place = ranks()
    if place is None:
        attend(client, load(Path(config)), gates)
        return
    from fedloom.client.torch import site  # noqa: PLC0415 - torch, where ranks train together

    group = site.join(client, place)
    try:
        if place.rank:
            site.follow(client, group)
        else:
            attend(client, load(Path(config)), (*gates, group), group)
    finally:
        group.close()


@cache
def _reset_signals_in_children() -> None:
    """Give processes that training code forks the default signal handlers.

    With the agent's, SIGTERM to a worker would stop the agent and not the worker.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_signals)


def _reset_signals() -> None:
    with suppress(ValueError):  # not the main thread
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_no_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError(
            "run() cannot be called in a thread with a running event loop. Within asyncio "
            "await Agent(client, load(Path(config))).run(), or asyncio.to_thread(run, client)."
        )


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the signal handlers when the agent ends: the program may continue."""
    ours = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if ours else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)


class Breakable(Protocol):
    """Other processes that a client's training depends on."""

    broken: str
    on_break: Callable[[], None] | None


def attend(
    client: Client | Program,
    settings: ClientConfig,
    gates: Sequence[Gate] = (),
    group: Breakable | None = None,
) -> None:
    """Run an agent until SIGTERM or SIGINT, or until the group is broken.

    Raises:
        FedloomError: the server refuses this client, the group is broken, or an event loop already
            runs in this thread.
    """
    _check_no_loop()
    _reset_signals_in_children()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(Agent(client, settings, gates).run())
        for number in SIGNALS:
            with suppress(NotImplementedError, RuntimeError):  # unsupported, or not the main thread
                loop.add_signal_handler(number, running.cancel)
        if group is not None:

            def end_soon() -> None:  # later, so that the task's failure is sent first
                loop.call_soon_threadsafe(lambda: loop.call_later(REPORT_FAILURE_S, running.cancel))

            group.on_break = end_soon
        with suppress(asyncio.CancelledError):
            await running
        log.info("stopped")

    with _handlers_kept():
        asyncio.run(main())
    if group is not None and group.broken:
        raise UnavailableError(group.broken)
