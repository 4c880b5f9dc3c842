"""The same experiment against a real server and real client processes on loopback.

The rounds are the server's own, over mTLS, and every client is a process that enrols by a token and
runs the deployed agent; what trains inside it is the kernel that the simulation uses. With the same
seeds the models have the same bits as in the simulation, which is what makes a simulation worth
believing.
"""

import asyncio
import gc
import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fedloom.cli.connection.api_client import Control
from fedloom.client import Client, SliceOf, Task, Update, run
from fedloom.client.identity.enrol import enrol
from fedloom.client.torch import modules
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.settings import toml
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.updates.message import TensorPart
from fedloom.server.engine import RoundKind
from fedloom.server.planning.advance import counts
from fedloom.server.planning.spec import RunSpec
from fedloom.simulation.api import spent, terminable
from fedloom.simulation.demo.processes import ANY_PORT, Stage
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels.base import Job, Kernel, Outcome, RoundTask
from fedloom.simulation.output.history import Result, RoundRecord, spread_of
from fedloom.simulation.output.progress import Progress
from fedloom.simulation.output.summary import summary
from fedloom.simulation.training.dry_run import check_fit
from fedloom.simulation.workers.setup import chosen, make_kernel, manifest_of
from fedloom.strategies import Slice

MOST_CLIENTS = 256
"""Processes on one machine: some 60 MB each beyond what they share."""
_ONLINE_S = 120.0
_POLL_S = 0.1
_SERVER = re.compile(r"^server = .*$", re.MULTILINE)


def over_the_wire(
    experiment: Experiment,
    *,
    on_round: Callable[[RoundRecord], object] | None = None,
    show: bool = True,
    console: Console | None = None,
    meter: Path | None = None,
) -> Result:
    """Run an experiment by a server and one process for each client.

    Args:
        experiment: without device models: real processes take the time that they take.
        on_round: called with every round that has ended.
        show: a progress display, and a summary in the end.
        console: where to show them; the terminal by default.
        meter: have every byte between clients and server counted, and the counts written there,
            for `fedloom.simulation.wire.byte_meter.read`.

    Returns:
        As `simulate`; `digest` is that of the server's last model.

    Raises:
        UnavailableError: a process ended, or the run did.
        UsageError: the experiment has parts that only a simulation has.
    """
    _check(experiment)
    torch.set_num_threads(1)
    model = experiment.model()
    kernel, why = chosen(experiment, model, torch.device("cpu"), None)
    check_fit(experiment, torch.device("cpu"))
    if kernel == "batched":
        raise UsageError(
            "Expected a kernel that trains one client at a time over the wire, got batched. Set "
            'engine.kernel = "resident" to compare bits.'
        )
    params = modules.parameters(model)
    with terminable(), TemporaryDirectory(prefix="fedloom-") as text:
        folder = Path(text)
        with Stage(folder, Console(quiet=True)) as stage:
            write_file(folder / "initial.safetensors", params, manifest_of(model, params).dtypes)
            fleet = _start_server(stage)
            through = None if meter is None else _start_meter(stage, fleet, meter)
            engine = f"{kernel} kernel in {len(experiment.population)} processes over the wire"
            spec = experiment.spec
            shown = Progress(spec.rounds, console, name=spec.name, engine=engine, show=show)
            with _clients(experiment, kernel, stage, through) as processes, shown:
                listeners = [shown.update, on_round or _ignore]
                status = _run(experiment, stage, processes, listeners)
            last = folder / "last.safetensors"
            where = ("--out", str(last), "--dir", str(stage.server))
            stage.command("model", "export", status["id"], *where)
        final = {name: np.array(array) for name, array in read_params(last).items()}
    result = Result(
        records=tuple(_records(status, experiment.spec)),
        params=final,
        digest=status["model"],
        folder=None,
        engine=f"{engine}: {why}",
        stopped="" if status["state"] == "finished" else status["reason"],
        privacy=spent(experiment.spec, status["rounds_committed"]),
    )
    if show:
        (console or Console()).print(summary(result))
    return result


def _ignore(_: RoundRecord) -> None:
    """Tell nobody of a round."""


def _check(experiment: Experiment) -> None:
    if experiment.devices is not None:
        raise UsageError(
            "Expected no [devices] over the wire, where real processes take real time. Leave them "
            "out to compare the two."
        )
    if experiment.attack is not None:
        raise UsageError("Expected no [attack] over the wire, where clients are honest.")
    if experiment.spec.buffer_config() is not None:
        raise UsageError(
            'Expected synchronous rounds over the wire, got cohort.mode = "buffered": whose update '
            "comes first is up to real time there, and so are the bits."
        )
    if experiment.stop:
        raise UsageError("Expected no [stop] over the wire: the server knows no test examples.")
    if len(experiment.population) > MOST_CLIENTS:
        raise UsageError(
            f"Expected at most {MOST_CLIENTS} clients over the wire, a process each, got "
            f"{len(experiment.population)}. Lower data.clients."
        )


# ---- the server's side ---------------------------------------------------------------------------


def _start_server(stage: Stage) -> str:
    """Start a server; returns where its fleet attends."""
    where = ("--dir", str(stage.server))
    stage.command("server", "init", *where, "--fleet", ANY_PORT, "--enrolment", ANY_PORT)
    stage.keep("server-process", "fedloom.cli.main", "server", "run", *where)
    stage.wait_for(stage.server / "control.sock")
    fleet: str = Control(stage.server).get("server")["fleet"]
    return fleet


def _start_meter(stage: Stage, fleet: str, counts: Path) -> str:
    """Start a relay in front of a server; returns its address."""
    listening = counts.with_suffix(".listening")
    listening.unlink(missing_ok=True)
    stage.keep("meter", "fedloom.simulation.wire.byte_meter", ANY_PORT, fleet, str(counts))
    stage.wait_for(listening)
    through = listening.read_text()
    listening.unlink()
    return through


def _run(
    experiment: Experiment,
    stage: Stage,
    processes: Sequence[Any],
    listeners: Sequence[Callable[[RoundRecord], object]],
) -> dict[str, Any]:
    """Submit the run, follow it to its end and return its last status."""
    spec = stage.folder / "run.toml"
    values = {n: v for n, v in experiment.spec.as_dict().items() if v is not None}
    spec.write_text(toml.dumps(values), encoding="utf-8")
    initial = str(stage.folder / "initial.safetensors")
    words = ("run", "submit", str(spec), "--model", initial, "--dir", str(stage.server))
    run_id: str = stage.command(*words)["id"]
    control = Control(stage.server)
    told = 0
    while True:
        stage.check()
        _check_there(processes)
        status: dict[str, Any] = control.get("runs", run_id)
        records = list(_records(status, experiment.spec))
        for record in records[told:]:
            for tell in listeners:
                tell(record)
        told = len(records)
        if status["state"] != "running":
            return status
        time.sleep(_POLL_S)


def _check_there(processes: Sequence[Any]) -> None:
    """Refuse to go on without a client: the server would, and the bits would be others."""
    dead = next((process for process in processes if process.exitcode is not None), None)
    if dead is not None:
        raise UnavailableError(
            f"Expected every client to stay to the end, {dead.name} ended with {dead.exitcode}. "
            "Run it again, with fewer clients if memory ran out."
        )


def _records(status: Mapping[str, Any], spec: RunSpec) -> Iterator[RoundRecord]:
    """The rounds that have ended, from what the server says of them."""
    trained, begun = 0, None
    for row in status["rounds"]:
        if row["state"] not in ("committed", "abandoned"):
            continue
        begun = row["opened_at"] if begun is None else begun
        trained += row["state"] == "committed" and counts(spec, RoundKind(row["kind"]))
        seconds = row["closed_at"] - row["opened_at"]
        accepted = row["accepted"]
        training, evaluation = row["training"] or {}, row["evaluation"] or {}
        yield RoundRecord(
            round=row["number"],
            trained=trained,
            kind=row["kind"],
            state=row["state"],
            reason=row["reason"],
            cohort=accepted,
            accepted=accepted,
            examples=training.get("num_examples", 0),
            training=training.get("values", {}),
            evaluation=evaluation.get("values", {}),
            spread=spread_of(training, evaluation),
            epsilon=(row["privacy"] or {}).get("epsilon"),
            wall_s=row["closed_at"] - begun,
            round_wall_s=seconds,
            clients_per_s=accepted / seconds if seconds else 0.0,
        )


# ---- the clients' side ---------------------------------------------------------------------------


@contextmanager
def _clients(
    experiment: Experiment, kernel: str, stage: Stage, through: str | None
) -> Iterator[Sequence[Any]]:
    """A process for every client, enrolled and online; ended in the end.

    Args:
        experiment: whose clients.
        kernel: that trains.
        stage: where they play.
        through: where they attend, if not at the server itself.
    """
    control = Control(stage.server)
    server = control.get("server")["enrolment"]
    context: Any = multiprocessing.get_context(_start_method())
    processes = []
    try:
        for number, name in enumerate(experiment.population.names):
            token = control.post("tokens", body={"client": name, "ttl_s": 3600.0})["token"]
            folder = stage.folder / name
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
    """How client processes start: forked, unless they would inherit gRPC at work.

    A forked process shares examples and imports with this one. But where a channel or a server is
    open here, as in a notebook that attends a federation, its threads hold locks that the child
    never gets: it would hang in its first call. What is open only for want of a collection goes.
    """
    gc.collect()
    return "fork" if hasattr(os, "fork") and not _grpc_threads() else "spawn"


def _grpc_threads() -> list[str]:
    """Names of this process' threads that gRPC runs; none where there is no /proc to ask."""
    names = []
    for thread in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended meanwhile
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
                f"Expected {count} clients online, got {online}"
                + (f"; {dead.name} ended with {dead.exitcode}" if dead else "")
                + ". Does the machine have the memory for so many processes?"
            )
        time.sleep(_POLL_S)


def _attend(
    experiment: Experiment,
    kernel: str,
    number: int,
    invitation: tuple[str, str],
    folder: Path,
    *,
    through: str | None,
) -> None:
    """Enrol and take part, in a process of its own."""
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
    """Leave no clients behind a parent that was killed."""
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
        """Train as the simulation would."""
        outcome = self._work(params, task, train=True)
        new = {part.tensor: _returned(part) for part in outcome.parts}
        measured = outcome.training
        return Update(new, measured.num_examples, measured.metrics, outcome.weight)

    def evaluate(
        self, params: dict[str, NDArray[Any]], task: Task
    ) -> tuple[int, Mapping[str, float]]:
        """Evaluate as the simulation would."""
        measured = self._work(params, task, train=False).evaluation
        return measured.num_examples, measured.metrics

    def can_evaluate(self) -> bool:
        """Whether there are examples to evaluate on."""
        return self._can_evaluate

    def _work(self, params: dict[str, NDArray[Any]], task: Task, *, train: bool) -> Outcome:
        mixed = task.local.personal.own_model is not None
        # The agent has put the client's own model into the one that is evaluated.
        local = RuleContext() if mixed and not train else task.local
        asked = RoundTask(
            run=task.run,
            round=task.round,
            settings=task.settings,
            rule=task.rule,
            config=task.config,
            weighting=task.weighting,
            evaluate=not train,
            train=train,
            local=lambda _: local,
            personal=task.local.personal,
        )
        (outcome,) = self._kernel.work(params, asked, [Job(self._number, task.seed)])
        return outcome


def _returned(part: TensorPart) -> NDArray[Any] | SliceOf:
    """What training code would have returned."""
    values = np.asarray(part.values)
    return SliceOf(values, part.coverage.ranges) if isinstance(part.coverage, Slice) else values
