"""Training code in a process of its own, which the agent can end.

A crash in native code, `os._exit`, memory beyond the budget or code that ignores a stop end that
process, not the agent: the task fails with the reason, and the next one gets a new process. Models,
updates, checkpoints and memories are files of the client's store, which both processes use; only a
task and the header of its update pass through pipes. The process stays for `keep_warm_s` after a
task, so that the next one need not load code and data again.

Invariants: an update counts only if it is complete in the outbox; when a process has ended, so has
all that it started, as far as the system shows it.
"""

import asyncio
import codecs
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from google.protobuf.message import DecodeError

from fedloom.client import process_tree
from fedloom.client.agent import training_frames as frames
from fedloom.client.agent.task_run import OutOfTimeError, StoppedError
from fedloom.client.agent.task_runner import CodeError, TaskOrder, TaskRunner, TrainingProcessError
from fedloom.client.agent.training_frames import Frame
from fedloom.client.agent.trim_memory import trim_all
from fedloom.client.api import Task
from fedloom.client.budgets import Budgets
from fedloom.client.budgets.gate import MB
from fedloom.client.owner.policy import PolicyError
from fedloom.client.state.store import ClientStore
from fedloom.client.training.checkpoints import Interruptions
from fedloom.client.training.progress import TrainingProgress
from fedloom.protocol.errors import FedloomError, IntegrityError, UnavailableError, UsageError
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

CHECK_S = 0.25
"""Seconds between two checks of a running training's memory and time."""
LEAVE_S = 2.0
"""How long an idle process may take to end by itself."""
TRIM_AFTER_S, LARGE_BYTES = 5.0, 16 << 20
"""Time into a training after which the agent returns the memory that the download needed: it takes
50 ms, which only rounds of a large model are worth at once."""
DRAIN_S = 1.0
"""How long the last output of an ended process is waited for."""
_LINES, _LINE_CHARS, _KEPT_LINES = 8, 200, 100
"""The output that a crash report quotes at most, and is chosen from."""
_FATAL, _LINES_BEFORE = "Fatal Python error:", 3
"""Where the interpreter's own report of a crash begins; what caused it is often just before it."""
_OURS = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables by which systemd speaks with the agent alone."""


@dataclass(frozen=True, slots=True)
class Program:
    """Training code that a process of its own loads.

    Attributes:
        command: starts `fedloom.client.agent.training_child.serve`.
        keep_warm_s: how long an idle process is kept, seconds.
    """

    command: Sequence[str]
    keep_warm_s: float


class TrainingProcess(TaskRunner):
    """Runs tasks in a process of their own, one at a time.

    Args:
        program: the training code.
        store: of models and updates.
        budgets: of the device; memory and time are enforced here.
        interruptions: checkpoints, and how long a stopped training may take to end.
    """

    def __init__(
        self, program: Program, store: ClientStore, budgets: Budgets, interruptions: Interruptions
    ) -> None:
        self._program, self._store = program, store
        self._budgets, self._interruptions = budgets, interruptions
        self._child: _Child | None = None
        self._can_train = True
        self._cooling: asyncio.Task[None] | None = None

    def can_train(self) -> bool:
        """Whether the code has a `train`."""
        return self._can_train

    def memory_bytes(self) -> int:
        """Memory of the process and of all that it started."""
        return 0 if self._child is None else self._child.memory_bytes()

    async def objection(self) -> None:
        """None: a training that must end is ended."""

    async def start(self) -> None:
        """Load the training code, and report at once if that fails.

        Raises:
            FedloomError: it cannot be loaded.
        """
        try:
            await self._warm()
        except TrainingProcessError as error:
            raise FedloomError(f"{error}") from None
        self._cool_later()

    async def train(self, order: TaskOrder) -> fleet_pb2.UpdateHeader:
        """Run a task; its update is then in the outbox."""
        child = await self._warm()
        written = frames.WrittenOrder(
            message=order.message.SerializeToString(),
            client=order.client,
            state_dir=self._store.directory,
            policy=order.policy,
            budgets=self._budgets,
            interruptions=self._interruptions,
        )
        try:
            child.begin(order.task, frames.pack(Frame.TASK, written.dump()))
            return await self._result(child, order.task, order.message.model.size_bytes)
        except TrainingProcessError:
            await child.end()
            # What a restarted agent would send, too.
            finished = await asyncio.to_thread(self._store.unsent, order.message)
            if finished is not None:
                return finished
            raise
        except BaseException:
            if child.is_ending or not child.is_free():
                await child.end()
            raise
        finally:
            self._cool_later()

    async def close(self) -> None:
        """End the process."""
        self._stay_warm()
        if self._child is not None:
            await self._child.end(LEAVE_S if self._child.is_free() else 0.0)

    # ---- life of the process -----------------------------------------------------------------

    async def _warm(self) -> "_Child":
        """A process that has loaded the code and is idle."""
        self._stay_warm()
        if self._child is not None and self._child.is_ending:
            await self._child.end()
            self._child = None
        if self._child is None:
            self._child = await _Child.start(self._program.command)
        try:
            self._can_train = await asyncio.shield(self._child.ready)
        except asyncio.CancelledError:
            self._cool_later()  # it goes on loading, for the next task
            raise
        except Exception:
            await self._child.end(LEAVE_S)
            raise
        return self._child

    def _stay_warm(self) -> None:
        if self._cooling is not None:
            self._cooling.cancel()
            self._cooling = None

    def _cool_later(self) -> None:
        self._stay_warm()
        if self._child is not None and not self._child.is_ending:
            self._cooling = asyncio.ensure_future(self._cool(self._child))

    async def _cool(self, child: "_Child") -> None:
        await asyncio.sleep(self._program.keep_warm_s)
        log.debug("the idle training process ends after %g s", self._program.keep_warm_s)
        await asyncio.shield(child.end(LEAVE_S))
        trim_all()

    # ---- a task ------------------------------------------------------------------------------

    async def _result(self, child: "_Child", task: Task, size_bytes: int) -> fleet_pb2.UpdateHeader:
        result = child.result
        guard = asyncio.ensure_future(self._guard(child))
        after_s = 0.0 if size_bytes >= LARGE_BYTES else TRIM_AFTER_S
        trimming = asyncio.get_running_loop().call_later(after_s, trim_all)
        try:
            await asyncio.wait((result, guard), return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            await child.end()
            raise guard.result()
        except asyncio.CancelledError:
            task.stop()
            child.send(frames.pack_fields(Frame.STOP, keep=task.checkpoints.are_kept))
            await asyncio.wait([result], timeout=self._interruptions.stop_s)
            if not result.done():
                log.warning(
                    "the training of round %d of %s ignored task.should_stop() for %g s: its "
                    "process is ended", task.round, task.run, self._interruptions.stop_s,
                )  # fmt: skip
            raise
        finally:
            guard.cancel()
            trimming.cancel()

    @staticmethod
    def _used_bytes(child: "_Child") -> int:
        return process_tree.memory_bytes([os.getpid()]) + child.memory_bytes()

    async def _guard(self, child: "_Child") -> Exception:
        """Wait until a training exceeds its memory, or its time by far; returns what to say."""
        most = self._budgets.memory_mb
        late_s = self._interruptions.stop_s
        overdue = 0.0
        while True:
            await asyncio.sleep(CHECK_S)
            if most is not None:
                used = await asyncio.to_thread(self._used_bytes, child)
                if used > most * MB:
                    return TrainingProcessError(
                        f"The training was ended: agent and training used {used / MB:,.0f} MB of "
                        f"memory, and budgets.memory_mb is {most:g}."
                    )
            if child.trains_since is not None and self._budgets.training_s is not None:
                overdue = time.monotonic() - child.trains_since - self._budgets.training_s
            if overdue > late_s:
                return OutOfTimeError(
                    f"The training did not end within training_s = {self._budgets.training_s:g} s, "
                    f"and ignored task.should_stop() for {late_s:g} s more, so that its process "
                    "was ended."
                )


class _Child(asyncio.SubprocessProtocol):
    """One training process.

    Attributes:
        ready: whether its code can train; fails if the code cannot be loaded.
        result: of its task; fails as the task fails.
        trains_since: monotonic time at which the training of its task began.
        is_ending: it has ended, or will soon.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = loop.create_future()
        self.result: asyncio.Future[fleet_pb2.UpdateHeader] = loop.create_future()
        self.trains_since: float | None = None
        self.is_ending = False
        self._task: Task | None = None
        self._frames = frames.FrameBuffer()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._family: dict[int, str] = {}
        self._open_pipes = {1, 2}
        self._drained, self._ended = asyncio.Event(), asyncio.Event()
        self._settling: asyncio.Task[None] | None = None
        self._transport: asyncio.SubprocessTransport

    @classmethod
    async def start(cls, command: Sequence[str]) -> "_Child":
        """Start a process; it loads its code."""
        environment = {k: v for k, v in os.environ.items() if k not in _OURS}
        loop = asyncio.get_running_loop()
        _, child = await loop.subprocess_exec(
            cls, *command, env=environment, start_new_session=os.name == "posix"
        )
        return child

    @property
    def _pid(self) -> int:
        return self._transport.get_pid()

    def begin(self, task: Task, order: bytes) -> None:
        """Send a task."""
        self._task, self.trains_since = task, None
        self.result = asyncio.get_running_loop().create_future()
        if self._ended.is_set():  # it was killed while it was idle
            self._fail(TrainingProcessError("The training process ended before its task."))
        self.send(order)

    def send(self, frame: bytes) -> None:
        """Write a frame; to a process that has ended this does nothing."""
        pipe = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        if pipe is not None and not pipe.is_closing():
            pipe.write(frame)

    def is_free(self) -> bool:
        """Whether it has no task, or has reported the end of it."""
        return self.ready.done() and (self._task is None or self.result.done())

    def memory_bytes(self) -> int:
        """Memory of the process and of all that it started."""
        return 0 if self._ended.is_set() else process_tree.memory_bytes(self._look())

    def _look(self) -> list[int]:
        """The process and what it started; those that leave it before it ends are still found."""
        family = process_tree.tree(self._pid)
        self._family |= process_tree.births(family)
        return family

    async def end(self, within_s: float = 0.0) -> None:
        """End the process and all that it started, and wait for that.

        Args:
            within_s: how long it may take to end by itself, when idle.
        """
        self.is_ending = True
        if within_s and not self._ended.is_set():
            if (pipe := self._transport.get_pipe_transport(0)) is not None:
                pipe.close()
            try:
                await asyncio.wait_for(self._ended.wait(), within_s)
            except TimeoutError:
                log.warning("the idle training process did not end in %g s: killed", within_s)
        self._kill()
        await self._ended.wait()

    def _kill(self) -> None:
        if self._transport.get_returncode() is None:
            self._look()
            process_tree.kill_group(self._pid)
            self._transport.kill()
            process_tree.kill(self._family)

    # ---- what it sends -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process has started."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It wrote a message or, on its standard output or error, text."""
        if fd == 2:
            self._printed(data)
            return
        try:
            for kind, payload in self._frames.feed(data):
                self._received(kind, payload)
        except (IntegrityError, DecodeError, KeyError, TypeError, ValueError) as error:
            self._break(f"The training process sent what is no message: {error}.")

    def _printed(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        sys.stderr.write(text)
        sys.stderr.flush()
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-_LINE_CHARS:]
        self._lines.extend(line[-_LINE_CHARS:] for line in lines if line.strip())

    def _received(self, kind: Frame, payload: bytes) -> None:
        match kind:
            case Frame.READY:
                if not self.ready.done():
                    self.ready.set_result(bool(frames.fields_of(payload)["train"]))
            case Frame.UNUSABLE:
                self._fail(_unusable(frames.fields_of(payload)))
            case Frame.TRAINING:
                self.trains_since = time.monotonic()
            case Frame.PROGRESS:
                if self._task is not None:
                    said = frames.fields_of(payload)
                    self._task.pass_on(TrainingProgress(said["fraction"], said["loss"]))
            case Frame.DONE:
                if not self.result.done():
                    self.result.set_result(fleet_pb2.UpdateHeader.FromString(payload))
            case Frame.FAILED:
                self._fail(_failure(frames.fields_of(payload)))
            case _:
                raise ValueError(kind)

    def _fail(self, error: Exception) -> None:
        for future in (self.ready, self.result):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved, so that asyncio does not log it

    # ---- its end -----------------------------------------------------------------------------

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """It closed a pipe, or has ended."""
        del exc
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self._drained.set()
        if fd == 1 and self._transport.get_returncode() is None:
            # It is ending, or the training code closed what is not its own.
            asyncio.get_running_loop().call_later(DRAIN_S, self._check_it_ended)

    def _check_it_ended(self) -> None:
        if self._transport.get_returncode() is None:
            self._break("The training code closed the connection to the agent.")

    def _break(self, what: str) -> None:
        self.is_ending = True
        self._fail(TrainingProcessError(what, self._output()))
        self._kill()

    def process_exited(self) -> None:
        """It has ended; its last messages may still be in the pipe."""
        self.is_ending = True
        self._settling = asyncio.ensure_future(self._settle())

    async def _settle(self) -> None:
        process_tree.kill_group(self._pid)
        process_tree.kill(self._family)
        try:
            await asyncio.wait_for(self._drained.wait(), DRAIN_S)
        except TimeoutError:
            log.debug("something that the training process started still holds its pipes")
        self._transport.close()
        said = f"The training process {_ending(self._transport.get_returncode() or 0)}."
        self._fail(TrainingProcessError(said, self._output()))
        process_tree.reap(self._pid, self._family.keys() - {self._pid})
        self._ended.set()

    def _output(self) -> str:
        lines = [*self._lines, *([self._rest] if self._rest.strip() else [])]
        fatal = next((i for i, line in enumerate(lines) if line.startswith(_FATAL)), len(lines))
        begin = max(0, min(fatal - _LINES_BEFORE, len(lines) - _LINES))
        return " | ".join(lines[begin:][:_LINES])


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    hint = "; the system may have run out of memory" if name == " (SIGKILL)" else ""
    return f"was ended by signal {-code}{name}{hint}"


def _unusable(said: dict[str, str]) -> Exception:
    """Why training code could not be loaded, as the error that loading it here would raise."""
    kinds: dict[str, type[FedloomError]] = {"usage": UsageError, "unavailable": UnavailableError}
    if said["kind"] in kinds:
        return kinds[said["kind"]](said["text"])
    return FedloomError(f"The client's code cannot be loaded: {said['text']}")


def _failure(said: dict[str, str]) -> Exception:
    match said["kind"]:
        case "policy":
            return PolicyError(said["text"])
        case "time":
            return OutOfTimeError(said["text"])
        case "stopped":
            return StoppedError(said["text"])
        case _:
            error = CodeError(said["name"], said["text"], said["place"])
            error.add_note(said["trace"])
            return error
