"""The clients of `over_the_wire`: one process each, which enrols and runs the deployed agent."""

import asyncio
import gc
import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.cli.connection.api_client import Control
from fedloom.client import Client, SliceOf, Task, Update, run
from fedloom.client.identity.enrol import enrol
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UnavailableError
from fedloom.protocol.updates.message import TensorPart
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels.base import ClientJob, ClientOutcome, Kernel, RoundTask
from fedloom.simulation.wire.federation import POLL_S
from fedloom.simulation.wire.processes import LocalProcesses
from fedloom.simulation.workers.setup import make_kernel
from fedloom.strategies import Slice

_ONLINE_S = 120.0
_SERVER = re.compile(r"^server = .*$", re.MULTILINE)


@contextmanager
def client_processes(
    experiment: Experiment, kernel: str, local: LocalProcesses, through: str | None
) -> Iterator[Sequence[Any]]:
    """Processes of all clients, enrolled and online; they end with the context.

    Args:
        experiment: of the clients.
        kernel: its name.
        local: the server, and the folder of the clients' files.
        through: an address to connect to instead of the server's.
    """
    control = Control(local.server)
    server = control.get("server")["enrolment"]
    context: Any = multiprocessing.get_context(_start_method())
    processes = []
    try:
        for number, name in enumerate(experiment.population.names):
            token = control.post("tokens", body={"client": name, "ttl_s": 3600.0})["token"]
            folder = local.folder / name
            process = context.Process(
                target=_attend,
                args=(experiment, kernel, number, (server, token), folder),
                kwargs={"through": through},
                name=f"fedloom client {name}",
                daemon=True,
            )
            process.start()
            processes.append(process)
        _wait_online(control, len(processes), processes)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _start_method() -> str:
    """The start method of client processes: fork, unless gRPC runs in this process.

    A forked process shares examples and imports with this one. But the locks of threads of an open
    channel or server would block its first call. Unreferenced channels are closed first.
    """
    gc.collect()
    return "fork" if hasattr(os, "fork") and not _grpc_threads() else "spawn"


def _grpc_threads() -> list[str]:
    """Names of gRPC's threads in this process; empty without /proc."""
    names = []
    for thread in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended meanwhile
            names.append(thread.read_text().strip())
    return [name for name in names if name.startswith(("event_engine", "grpc_"))]


def _wait_online(control: Control, count: int, processes: list[Any]) -> None:
    deadline = time.monotonic() + _ONLINE_S
    while True:
        online = sum(client["online"] for client in control.get("clients")["clients"])
        if online == count:
            return
        dead = next((p for p in processes if p.exitcode is not None), None)
        if dead is not None or time.monotonic() > deadline:
            raise UnavailableError(
                f"{online} of {count} clients came online"
                + (f"; {dead.name} ended with {dead.exitcode}" if dead else "")
                + ". Does the machine have the memory for so many processes?"
            )
        time.sleep(POLL_S)


def _attend(
    experiment: Experiment,
    kernel: str,
    number: int,
    invitation: tuple[str, str],
    folder: Path,
    *,
    through: str | None,
) -> None:
    """Enrol and take part, in a separate process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    logging.basicConfig(
        filename=folder.with_suffix(".log"), level=logging.INFO, format="%(asctime)s %(message)s"
    )
    config = folder / "client.toml"
    asyncio.run(enrol(*invitation, config))
    if through is not None:
        config.write_text(_SERVER.sub(f'server = "{through}"', config.read_text()))
    if experiment.client is not None:
        client = experiment.client(experiment.population.names[number])
    else:
        client = KernelClient(
            make_kernel(experiment, kernel, torch.device("cpu")),
            number,
            can_evaluate=bool(_held_out(experiment, number)),
        )
    run(client, config)


def _end_with_parent() -> None:
    """End when the parent does, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _held_out(experiment: Experiment, number: int) -> int:
    shards = experiment.population.held_out_shards
    return 0 if shards is None else len(shards[number])


class KernelClient(Client):
    """A deployed client that trains with a simulation's kernel.

    Args:
        kernel: trains.
        number: index of the client in the population.
        can_evaluate: whether it holds examples to evaluate on.
    """

    def __init__(self, kernel: Kernel, number: int, *, can_evaluate: bool) -> None:
        self._kernel = kernel
        self._number = number
        self._can_evaluate = can_evaluate

    def train(self, params: dict[str, NDArray[Any]], task: Task) -> Update:
        """Train as in the simulation."""
        outcome = self._work(params, task, train=True)
        new = {part.tensor: _returned(part) for part in outcome.parts}
        measured = outcome.training
        return Update(new, measured.num_examples, measured.metrics, outcome.weight)

    def evaluate(
        self, params: dict[str, NDArray[Any]], task: Task
    ) -> tuple[int, Mapping[str, float]]:
        """Evaluate as in the simulation."""
        measured = self._work(params, task, train=False).evaluation
        return measured.num_examples, measured.metrics

    def can_evaluate(self) -> bool:
        """Whether there are examples to evaluate on."""
        return self._can_evaluate

    def _work(self, params: dict[str, NDArray[Any]], task: Task, *, train: bool) -> ClientOutcome:
        mixed = task.local.personal.own_model is not None
        # The agent has put the client's own model into the one that is evaluated.
        local = RuleContext() if mixed and not train else task.local
        asked = RoundTask(
            run=task.run,
            round=task.round,
            training_round=task.training_round,
            settings=task.settings,
            rule=task.rule,
            config=task.config,
            weighting=task.weighting,
            evaluate=not train,
            train=train,
            local=lambda _: local,
            personal=task.local.personal,
            adapters=task.local.adapters,
        )
        (outcome,) = self._kernel.work(params, asked, [ClientJob(self._number, task.seed)])
        return outcome


def _returned(part: TensorPart) -> NDArray[Any] | SliceOf:
    """A part as training code returns it."""
    values = np.asarray(part.values)
    return SliceOf(values, part.coverage.ranges) if isinstance(part.coverage, Slice) else values
