"""Worker processes that live as long as the simulation, each with one thread for arithmetic.

A round is one message to each worker, with the model in shared memory. Workers take the next group
of jobs by a shared counter, so that none waits while there is work. Sums return as integers in
shared memory. The number of threads is always set: two processes with two threads each were 2 to 45
times slower.
"""

import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output import words
from fedloom.simulation.output.history import WorkerShare
from fedloom.simulation.workers.base import Report, RoundWork, Yield
from fedloom.simulation.workers.failures import explained
from fedloom.simulation.workers.measure import chunks, mean
from fedloom.simulation.workers.shared import SharedArrays, SharedSum
from fedloom.simulation.workers.worker import Worker
from fedloom.strategies import Partial
from fedloom.strategies.exact.partial import TensorSpec

REPORT_S = 0.1
"""Seconds between a worker's reports."""
_STOP_S = 5.0

MakeWorker = Callable[[int], Worker]
"""Called in the process of worker 0, 1, …; sets its number of threads and its device."""


@dataclass(frozen=True, slots=True)
class _Links:
    pipe: Connection
    model: SharedArrays
    counter: Any
    sum: SharedSum
    inherited: tuple[Connection, ...]


class WorkerPool:
    """Persistent worker processes.

    Args:
        make: builds a worker in its own process.
        size: number of processes.
        names: of the workers, for reports.
        model: shape and dtype of the model's tensors by name.
        empty: a round's sum before any update.
        fork: workers inherit the data instead of receiving it; not for CUDA.
    """

    def __init__(
        self,
        make: MakeWorker,
        size: int,
        *,
        names: Sequence[str],
        model: dict[str, TensorSpec],
        empty: Partial,
        fork: bool,
    ) -> None:
        context = multiprocessing.get_context("fork" if fork else "spawn")
        self._names = list(names)
        self._model = SharedArrays(context, model)
        self._counter: Any = context.Value("q", 0)
        self._sums = [SharedSum(context, empty) for _ in range(size)]
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for number in range(size):
            ours, theirs = context.Pipe()
            # Forked workers inherit the parent's ends and close them, to notice the parent's death.
            inherited = (*self._pipes, ours) if fork else ()
            links = _Links(theirs, self._model, self._counter, self._sums[number], inherited)
            known = make if fork else None
            self._processes.append(_start(context, (number, known, links), self._names[number]))
            theirs.close()
            self._pipes.append(ours)
        if not fork:
            self._send_maker(make)

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._pipes)

    def train(self, work: RoundWork) -> Yield:
        """Do a round's jobs; see `WorkerGroup.train`."""
        done = Yield()
        busy = [(0, 0.0)] * self.size
        self._send(work.params, ("train", work.task, _packed(work.groups)))
        for number, message in self._answers():
            match message:
                case ("reports", reports):
                    done.reports += reports
                    work.progress(len(done.reports))
                case ("sum", reports, described, clients, busy_s):
                    done.reports += reports
                    work.progress(len(done.reports))
                    work.partial.merge(self._sums[number].end(described))
                    busy[number] = clients, busy_s
        done.shares = tuple(
            WorkerShare(worker=name, clients=clients, busy_s=busy_s)
            for name, (clients, busy_s) in zip(self._names, busy, strict=True)
        )
        return done

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the first test examples."""
        self._send(params, ("evaluate", chunks(num_examples)))
        parts: list[Measurement] = []
        for _, message in self._answers():
            parts += message[1]
        return mean(parts)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + _STOP_S
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []

    # ---- messages ----------------------------------------------------------------------------

    def _send_maker(self, make: MakeWorker) -> None:
        """Send spawned workers the function that builds them.

        Not as an argument of their processes: `Process.start` holds both ends of the pipe that it
        writes arguments to, and would block forever if a child died before reading a megabyte.
        """
        for number, pipe in enumerate(self._pipes):
            try:
                pipe.send(make)
            except OSError:
                process = self._processes[number]
                process.join(1.0)
                self.close()
                raise UsageError(
                    f"{self._names[number]} ended at its start with "
                    f"{_exit_text(process.exitcode)}. Workers import the script that was started: "
                    'put its work under `if __name__ == "__main__":`.'
                ) from None

    def _send(self, params: Params, message: tuple[Any, ...]) -> None:
        shared = self._model.arrays()
        for name, array in params.items():
            np.copyto(shared[name], array)
        self._counter.value = 0
        pickled = ForkingPickler.dumps(message)
        for number, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(pickled)
            except OSError:
                self._died(number)

    def _answers(self) -> Any:
        """(worker, message) until the last message of every worker."""
        waiting: dict[Any, int] = {pipe: number for number, pipe in enumerate(self._pipes)}
        while waiting:
            for ready in wait(list(waiting)):
                number = waiting[ready]
                try:
                    message: tuple[Any, ...] = self._pipes[number].recv()
                except (EOFError, OSError):
                    self._died(number)
                if message[0] == "failed":
                    raise message[1]
                if message[0] != "reports":
                    del waiting[ready]
                yield number, message

    def _died(self, number: int) -> None:
        process = self._processes[number]
        process.join(1.0)
        raise UnavailableError(
            f"{self._names[number]} ended during the simulation, with "
            f"{_exit_text(process.exitcode)}. Continue with {words.RESUME}, with fewer workers if "
            "memory ran out."
        )


def _start(context: BaseContext, arguments: tuple[Any, ...], name: str) -> Any:
    process = context.Process(  # type: ignore[attr-defined] # typed on the concrete contexts only
        target=_serve, args=arguments, name=f"fedloom {name}", daemon=True
    )
    process.start()
    return process


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _packed(groups: Sequence[Sequence[ClientJob]]) -> tuple[NDArray[np.int64], ...]:
    """Groups as arrays: their ends, and a row for each job."""
    jobs = [job for group in groups for job in group]
    return np.cumsum([len(group) for group in groups]), np.array(jobs, np.int64)


# ---- in the worker's process ---------------------------------------------------------------------


def _serve(number: int, make: MakeWorker | None, links: _Links) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe = links.pipe
    for end in links.inherited:
        end.close()
    try:
        worker = (make or pipe.recv())(number)
        gc.freeze()  # a full collection would copy the pages that it shares with the parent
        params = links.model.arrays()
        for array in params.values():
            array.flags.writeable = False
        while True:
            match pipe.recv():
                case ("train", task, packed):
                    _train(worker, params, task, packed, links)
                case ("evaluate", ranges):
                    claims = _claims(links.counter, len(ranges))
                    pipe.send(("means", [worker.evaluate(params, *ranges[n]) for n in claims]))
    except (EOFError, BrokenPipeError):
        return  # the parent is gone or done
    except Exception as error:  # noqa: BLE001 - sent to the parent, which raises it
        pipe.send(("failed", explained(error, f"The work of worker {number}")))


def _claims(counter: Any, count: int) -> Any:
    """Numbers below `count` that no other worker takes."""
    while True:
        with counter.get_lock():
            number = counter.value
            counter.value = number + 1
        if number >= count:
            return
        yield number


def _train(
    worker: Worker, params: Params, task: RoundTask, packed: tuple[NDArray[np.int64], ...],
    links: _Links,
) -> None:  # fmt: skip
    stops, rows = (array.tolist() for array in packed)
    partial = links.sum.begin()
    reports: list[Report] = []
    num_clients, busy_s, told = 0, 0.0, time.perf_counter()
    for number in _claims(links.counter, len(stops)):
        begin = time.perf_counter()
        first = stops[number - 1] if number else 0
        jobs = [ClientJob._make(row) for row in rows[first : stops[number]]]
        reports += worker.train(params, task, jobs, partial)
        now = time.perf_counter()
        num_clients += len(jobs)
        busy_s += now - begin
        if now - told > REPORT_S:
            links.pipe.send(("reports", reports))
            reports, told = [], now
    links.pipe.send(("sum", reports, links.sum.describe(partial), num_clients, busy_s))
