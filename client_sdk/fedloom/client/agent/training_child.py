"""The training process: loads the author's code and runs one task after another.

Its standard input and output carry the messages of `training_frames`; what the author's code prints
goes to standard error, which the agent passes on. The process ends with the agent.
"""

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedloom.client.agent import training_frames as frames
from fedloom.client.agent.task_run import (
    OutOfTimeError,
    StoppedError,
    TaskRun,
    checkpoints_of,
    task_from_message,
)
from fedloom.client.agent.task_runner import as_exception, words
from fedloom.client.agent.training_frames import Frame, WrittenOrder
from fedloom.client.api import Client, Metrics, Params, Task, Trained
from fedloom.client.owner.policy import PolicyError
from fedloom.client.state.store import ClientStore
from fedloom.client.training.progress import TrainingProgress
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.user_code import place
from fedloom.protocol.v1 import fleet_pb2

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""Added to the process's score: without memory, the system ends it before the agent."""
_TRACE_LINES = 30


def serve(load: Callable[[], Client]) -> None:
    """Load training code, and run the agent's tasks until it closes the pipe.

    Args:
        load: returns the training code.
    """
    pipes = _Pipes()
    _end_with_the_agent()
    faulthandler.enable(all_threads=False)
    try:
        client = load()
    except BaseException as error:  # noqa: BLE001 - reported, whatever it is
        pipes.send(frames.pack_fields(Frame.UNUSABLE, **_why_unusable(error)))
        return
    _Tasks(client, pipes).run()


class _Pipes:
    """The pipes to the agent, out of reach of the code that prints."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - of the process
        self._process = os.getpid()
        self._buffer = frames.FrameBuffer()
        self._writing = threading.Lock()

    def end_a_fork(self) -> None:
        """End a fork that the training code made, and that returned where its parent does."""
        if os.getpid() != self._process:
            os._exit(1)

    def send(self, frame: bytes) -> None:
        """Write a frame whole."""
        self.end_a_fork()
        data = memoryview(frame)
        with self._writing:
            while data:
                data = data[os.write(self._out, data) :]

    def read(self) -> list[tuple[Frame, bytes]]:
        """Wait for messages; none: the agent has closed the pipe."""
        while data := os.read(self._in, 1 << 16):
            if found := list(self._buffer.feed(data)):
                return found
        return []


class _OnlyHere(Client):
    """Training code of which only this process uses the result: a fork would write it, too."""

    def __init__(self, client: Client, pipes: _Pipes) -> None:
        self._client, self._pipes = client, pipes

    def can_train(self) -> bool:
        return self._client.can_train()

    def can_evaluate(self) -> bool:
        return self._client.can_evaluate()

    def train(self, params: Params, task: Task) -> Trained:
        try:
            return self._client.train(params, task)
        finally:
            self._pipes.end_a_fork()

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        try:
            return self._client.evaluate(params, task)
        finally:
            self._pipes.end_a_fork()

    def answer(self, message: bytes, task: Task) -> bytes:
        try:
            return self._client.answer(message, task)
        finally:
            self._pipes.end_a_fork()


class _Tasks:
    """Runs tasks in this thread, while another one listens."""

    def __init__(self, client: Client, pipes: _Pipes) -> None:
        self._client, self._pipes = _OnlyHere(client, pipes), pipes
        self._work: queue.SimpleQueue[TaskRun | None] = queue.SimpleQueue()
        self._task: Task | None = None
        self._store: ClientStore | None = None

    def run(self) -> None:
        """Run until the agent closes the pipe."""
        threading.Thread(target=self._listen, name="agent", daemon=True).start()
        self._pipes.send(frames.pack_fields(Frame.READY, train=self._client.can_train()))
        while (work := self._work.get()) is not None:
            self._do(work)

    def _listen(self) -> None:
        while found := self._pipes.read():
            for kind, payload in found:
                if kind is Frame.TASK:
                    self._accept(WrittenOrder.load(payload))
                elif kind is Frame.STOP and self._task is not None:
                    if not frames.fields_of(payload)["keep"]:
                        self._task.checkpoints.close()
                    self._task.stop()
        if self._task is not None:
            _end_group()  # the agent is gone, and nobody would send the result
        self._work.put(None)

    def _accept(self, order: WrittenOrder) -> None:
        """Take a task; from here on it can be stopped."""
        try:
            work = self._prepared(order)
        except Exception as error:  # noqa: BLE001 - such as a folder that cannot be read
            self._pipes.send(frames.pack_fields(Frame.FAILED, **_described(error)))
        else:
            self._task = work.task
            self._work.put(work)

    def _prepared(self, order: WrittenOrder) -> TaskRun:
        message = fleet_pb2.Task.FromString(order.message)
        if self._store is None:
            self._store = ClientStore(order.state_dir)
        checkpoints = checkpoints_of(message, self._store, order.budgets, order.interruptions)
        return TaskRun(
            self._client,
            replace(task_from_message(message, order.client), checkpoints=checkpoints),
            message,
            order.client,
            self._store,
            order.policy,
            order.budgets,
            trains=lambda: self._pipes.send(frames.pack(Frame.TRAINING)),
        )

    def _do(self, work: TaskRun) -> None:
        try:
            with work.task.reporting(self._report):
                header = work.run()
        except BaseException as error:  # noqa: BLE001 - reported, whatever it is
            self._task = None
            self._pipes.send(frames.pack_fields(Frame.FAILED, **_described(error)))
        else:
            self._task = None
            self._pipes.send(frames.pack(Frame.DONE, header.SerializeToString()))

    def _report(self, note: TrainingProgress) -> None:
        self._pipes.send(frames.pack_fields(Frame.PROGRESS, fraction=note.fraction, loss=note.loss))


def _why_unusable(error: BaseException) -> dict[str, str]:
    kinds = {UsageError: "usage", UnavailableError: "unavailable"}
    kind = next((kind for c, kind in kinds.items() if isinstance(error, c)), "code")
    if kind == "code" or os.environ.get("FEDLOOM_TRACEBACK"):
        traceback.print_exception(error)
    failed = as_exception(error)
    text = str(failed) if kind != "code" else f"{type(failed).__name__}: {words(failed)}"
    return {"kind": kind, "text": text}


def _described(error: BaseException) -> dict[str, str]:
    failed = as_exception(error)
    kinds = {PolicyError: "policy", OutOfTimeError: "time", StoppedError: "stopped"}
    kind = next((kind for c, kind in kinds.items() if isinstance(failed, c)), "code")
    trace = "".join(traceback.format_exception(error)).splitlines()[-_TRACE_LINES:]
    return {
        "kind": kind,
        "name": type(failed).__name__,
        "text": str(failed) if kind != "code" else words(failed),
        "place": place(error),
        "trace": "\n".join(trace),
    }


def _end_with_the_agent() -> None:
    """End this process when the agent is killed, also while native code holds the interpreter."""
    if sys.platform == "linux":
        agent = os.getppid()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(1)  # it ended before that call
        with suppress(OSError, ValueError):
            score = Path("/proc/self/oom_score_adj")
            score.write_text(str(min(1000, int(score.read_text()) + _OOM_SCORE)))


def _end_group() -> None:
    if sys.platform != "win32" and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
