"""The agent on a device: attends the server, does the tasks it is offered, survives the rest.

One stream brings offers, so nothing is polled. Reconnects back off with full jitter (M. Brooker,
"Exponential Backoff And Jitter", 2015), so that a restarted server is not met by everybody at once.
Hours without a connection are normal: one line says that it is gone, and one that it is back.
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
from fedloom.client.agent.task_queue import TaskQueue
from fedloom.client.api import Client
from fedloom.client.budgets import BudgetGate
from fedloom.client.conditions import ConditionGate
from fedloom.client.config import ClientConfig, load
from fedloom.client.gates import Gate
from fedloom.client.identity.renew import Renewal
from fedloom.client.network import transfer
from fedloom.client.network.connection import Connection, UnreadableError, unreadable
from fedloom.client.network.jitter import JITTER
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
"""Failures to connect between two looks at why, from the second on."""
TELL_S = 1.0
"""How long a site that is broken stays to say so."""

SLIM_AFTER_S = 5.0
"""Of having nothing to do: then memory is given back."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_TOO_LONG = (
    "Refused a message of the server: it is longer than the "
    f"{methods.MAX_MESSAGE_BYTES} bytes that one may have."
)


class Agent:
    """One client of a federation.

    Args:
        client: the author's code.
        config: where it belongs.
        gates: asked, in order, before anything of an offer is downloaded.
    """

    def __init__(self, client: Client, config: ClientConfig, gates: Sequence[Gate] = ()) -> None:
        self._config = config
        self._store = ClientStore(config.state_dir)
        self._connection = Connection(config, self._store)
        chunks = Chunks(config.chunk_bytes)
        conditions = ConditionGate(config.conditions)
        tracer = tracing.tracer(config.tracing.endpoint, "fedloom-client")
        self._tasks = TaskQueue(
            client,
            self._connection,
            self._store,
            chunks,
            gates=[conditions, BudgetGate(config.budgets, self._store), *gates],
            rules=PolicyGate(PolicyFile(config.policy), config.state_dir),
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
        self._standing = HealthFile(config.state_dir, config.server)
        self._away = False
        self._ended = False

    async def run(self) -> None:
        """Attend until cancelled.

        Raises:
            Refusal: the server will never have this client again without somebody's help.
            UsageError: it is not enrolled, or another agent runs on its state directory.
        """
        with only_agent(self._store.directory):
            await self._run()

    async def _run(self) -> None:
        attempt, longest = 0, 0.0
        self._standing.begins()
        watchdog = asyncio.ensure_future(keep_watchdog())
        try:
            while True:
                self._connection.greeted = False
                begun = time.monotonic()
                await self._renew_if_ended()
                try:
                    await self._attend()
                except UnavailableError as error:
                    self._gone(error)
                except (OSError, ValueError) as error:  # a disk; a library, of what a server sends
                    log.exception("the session ended by a fault")
                    self._gone(UnavailableError(f"{type(error).__name__}: {printable(str(error))}"))
                except Refusal as refusal:
                    if refusal.code.reaction is Reaction.STOP:
                        raise
                    self._ended = refusal.code.reaction is Reaction.RENEW
                    log.warning("the server ended the session: %s", refusal)
                    self._standing.waits()
                else:
                    continue  # to use a renewed certificate
                # A session that the server ends at once again and again is none.
                held = self._connection.greeted and time.monotonic() - begun >= longest
                attempt = 0 if held else attempt + 1
                if attempt % DIAGNOSE_EVERY == 2:
                    await self._diagnose()
                longest = min(self._config.reconnect_s, FIRST_BACKOFF_S * 2 ** min(attempt, 16))
                await asyncio.sleep(JITTER.uniform(0, longest))
        finally:
            self._standing.ends()
            watchdog.cancel()
            await self._tasks.stop()
            if self._tracer.on:
                await asyncio.to_thread(self._tracer.close)

    async def _renew_if_ended(self) -> None:
        if self._config.plaintext:
            return
        try:
            await self._renewal.if_ended(told=self._ended)
            self._ended = False
        except UnavailableError as error:
            # It may be that only this device's clock says so: the server is asked all the same.
            log.log(self._loudness(), "the certificate that has ended is not renewed: %s", error)

    async def _diagnose(self) -> None:
        """Where the server does not want this certificate, it may have ended: our clock is slow."""
        refusal = await self._connection.diagnose()
        if refusal is not None and refusal.code is Code.NO_CERTIFICATE:
            self._ended = bool(self._config.enrolment)

    def _loudness(self) -> int:
        """A device may be out of reach for days: say so once."""
        first = not self._away or self._connection.greeted
        return logging.INFO if first else logging.DEBUG

    def _gone(self, error: UnavailableError) -> None:
        log.log(self._loudness(), "not connected: %s", error)
        self._away = True
        self._standing.waits()

    async def _attend(self) -> None:
        """Connect and listen until the stream ends or the certificate wants replacing."""
        async with self._connection.attending() as (channel, stream):
            renewal = asyncio.ensure_future(
                asyncio.sleep(0)
                if self._config.plaintext
                else self._renewal.when_due(channel, stream)
            )
            slimming: asyncio.Task[None] | None = None
            try:
                await self._renewal.learn_key(channel)
                await self._connection.greet(stream)
                self._away = False
                self._standing.attends()
                slimming = asyncio.ensure_future(self._slim())
                await self._listen(stream)
            except UnreadableError as error:
                self._store.journal.note("refused", f"{error}", server=self._config.server)
                raise
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                if await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self._store.journal.note("refused", _TOO_LONG, server=self._config.server)
                raise await transfer.failure(stream, self._config.server) from error
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if not renewal.done() or (current is not None and current.cancelling()):
                    raise
                # The stream was cancelled, not we: there is a new certificate to connect with.
            finally:
                renewal.cancel()
                if slimming is not None:
                    slimming.cancel()

    async def _slim(self) -> None:
        """Give memory back when this agent is idle: after its start, and after each task."""
        while True:
            await self._tasks.idle.wait()
            await asyncio.sleep(SLIM_AFTER_S)
            if self._tasks.idle.is_set():
                trim_memory.slim()
                await self._tasks.busy.wait()

    async def _listen(self, stream: Any) -> None:
        while (message := await stream.read()) is not grpc.aio.EOF:
            if message is None:
                raise unreadable(self._config.server)
            match message.WhichOneof("kind"):
                case "offer":
                    await self._tasks.asked(message.offer.key, message.offer, message.traceparent)
                case "signed_offer":
                    signed = message.signed_offer
                    await self._tasks.asked(signed.task, signed, message.traceparent)
                case "withdraw":
                    self._tasks.withdrawn(message.withdraw)
                case _:
                    log.debug("a message that this version does not know")
        raise await transfer.failure(stream, self._config.server)


def run(client: Client, config: str | Path = "client.toml", gates: Sequence[Gate] = ()) -> None:
    """Attend the server and do its tasks until SIGTERM or SIGINT.

    Under torchrun all ranks are one client: rank 0 attends, the others train with it.

    Where nothing has set up logging, what happens is logged to standard error.

    Args:
        client: your code.
        config: path of the settings that `fedloom client enroll` wrote.
        gates: of your own, asked before an offer is taken.

    Raises:
        FedloomError: the settings are wrong, or the server will not have this client.
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
def _let_children_be() -> None:
    """Children that the training code forks take signals as any process does.

    Else they would take them as the agent: it would stop where a pool of workers is told to end,
    and the workers would not.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_be_a_child)


def _be_a_child() -> None:
    with suppress(ValueError):  # not the thread that signals go to
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_no_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError(
            "Expected run() in a thread without an event loop, got one that runs. Within asyncio "
            "await Agent(client, load(Path(config))).run(), or asyncio.to_thread(run, client)."
        )


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """A program that goes on after its agent has the signal handlers that it had before."""
    ours = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if ours else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: one that was not set from Python
                signal.signal(number, handler)


class Breakable(Protocol):
    """What a client's training hangs on beside this process."""

    broken: str
    on_break: Callable[[], None] | None


def attend(
    client: Client,
    settings: ClientConfig,
    gates: Sequence[Gate] = (),
    group: Breakable | None = None,
) -> None:
    """Attend until SIGTERM or SIGINT, or until the group is broken.

    Raises:
        FedloomError: the server will not have this client, or the group is broken; or an event loop
            runs in this thread already.
    """
    _check_no_loop()
    _let_children_be()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(Agent(client, settings, gates).run())
        for number in SIGNALS:
            with suppress(NotImplementedError, RuntimeError):  # not there, or not the main thread
                loop.add_signal_handler(number, running.cancel)
        if group is not None:

            def end_soon() -> None:  # not at once: the server is to hear why the task failed
                loop.call_soon_threadsafe(lambda: loop.call_later(TELL_S, running.cancel))

            group.on_break = end_soon
        with suppress(asyncio.CancelledError):
            await running
        log.info("stopped")

    with _handlers_kept():
        asyncio.run(main())
    if group is not None and group.broken:
        raise UnavailableError(group.broken)
