"""An experiment on a real server with real client processes on loopback.

The rounds are the server's own, over mTLS. Every client is a process that enrols by a token, runs
the deployed agent and trains with the kernel of the simulation. With the same seeds the models have
the same bits as in the simulation, but with noise of masking sessions, which each device draws from
its system.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fedloom.client.torch import modules
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.server.engine import RoundKind
from fedloom.server.planning.advance import counts
from fedloom.server.planning.spec import RunSpec
from fedloom.simulation.api import OnRound, ends, spent, terminable
from fedloom.simulation.caller_state import preserved
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output.history import Result, RoundRecord, spread_of
from fedloom.simulation.output.progress import Progress
from fedloom.simulation.output.summary import summary
from fedloom.simulation.signature import check_takes
from fedloom.simulation.training.dry_run import check_fit
from fedloom.simulation.training.evaluate import read_only
from fedloom.simulation.wire import federation
from fedloom.simulation.wire.clients import client_processes
from fedloom.simulation.wire.processes import LocalProcesses
from fedloom.simulation.workers.setup import chosen, manifest_of
from fedloom.strategies import Params

Listener = Callable[[str, RoundRecord], object]
"""Called with the run's identifier and each round that has ended."""
MOST_CLIENTS = 256
"""Processes on one machine: about 60 MB each, without shared memory."""


@preserved()
def over_the_wire(
    experiment: Experiment,
    *,
    on_round: OnRound | None = None,
    show: bool = True,
    console: Console | None = None,
    meter: Path | None = None,
) -> Result:
    """Run an experiment on a server, with one process for each client.

    Args:
        experiment: without device models: real processes take real time.
        on_round: as of `simulate`, but it cannot end the run: the server continues meanwhile.
        show: show a progress display, and a summary at the end.
        console: for both; default: the terminal.
        meter: file for the counts of bytes between clients and server, for
            `fedloom.simulation.wire.byte_meter.read`; None to count nothing.

    Returns:
        As `simulate`; `digest` is that of the server's last model.

    Raises:
        UnavailableError: a process ended, or the run did.
        UsageError: the experiment has parts that only a simulation supports, or `on_round` returned
            True.
    """
    _check(experiment)
    if on_round is not None:
        check_takes("on_round", on_round, "record", "params")
    torch.set_num_threads(1)
    model = experiment.model()
    kernel, why = chosen(experiment, model, torch.device("cpu"), None)
    check_fit(experiment, torch.device("cpu"))
    if kernel == "batched":
        raise UsageError(
            "Over the wire a kernel must train one client at a time. Set engine.kernel = "
            '"resident" instead of "batched" to compare bits.'
        )
    params = modules.parameters(model)
    with terminable(), TemporaryDirectory(prefix="fedloom-") as text:
        folder = Path(text)
        with LocalProcesses(folder, Console(quiet=True)) as local:
            write_file(folder / "initial.safetensors", params, manifest_of(model, params).dtypes)
            fleet = federation.start_server(local)["fleet"]
            through = None if meter is None else _start_meter(local, fleet, meter)
            engine = f"{kernel} kernel in {len(experiment.population)} processes over the wire"
            spec = experiment.spec
            shown = Progress(spec.rounds, console, name=spec.name, engine=engine, show=show)
            with client_processes(experiment, kernel, local, through) as processes, shown:
                listeners: list[Listener] = [lambda _, record: shown.update(record)]
                if on_round is not None:
                    listeners.append(_Hook(on_round, local, spec, params))
                status = _run(experiment, local, processes, listeners)
            last = folder / "last.safetensors"
            federation.export(local, status["id"], last)
        final = {name: np.array(array) for name, array in read_params(last).items()}
    records = tuple(_records(status, experiment.spec))
    opened = max((record.round for record in records), default=0)
    result = Result(
        records=records,
        params=final,
        digest=status["model"],
        folder=None,
        engine=f"{engine}: {why}",
        stopped="" if status["state"] == "finished" else status["reason"],
        privacy=spent(experiment.spec, status["rounds_committed"], opened),
        best_model=_best(status["best"]),
        enough=status["reason"] if status["best"] and status["state"] == "finished" else "",
    )
    if show:
        (console or Console()).print(summary(result))
    return result


class _Hook:
    """Calls `on_round` with each round and the model after it, read from the server.

    Args:
        on_round: the user's function.
        local: processes of the server.
        spec: of the run.
        params: the initial model.
    """

    def __init__(
        self, on_round: OnRound, local: LocalProcesses, spec: RunSpec, params: Params
    ) -> None:
        self._on_round, self._local, self._spec, self._params = on_round, local, spec, params

    def __call__(self, run: str, record: RoundRecord) -> None:
        if record.state == "committed" and counts(self._spec, RoundKind(record.kind)):
            path = self._local.folder / "after-round.safetensors"
            federation.download(self._local, run, record.round, path)
            self._params = {name: np.array(array) for name, array in read_params(path).items()}
        if ends(self._on_round(record, read_only(self._params))):
            raise UsageError(
                "on_round returned True, which cannot end a run over the wire: the server "
                "continues meanwhile. Return nothing, or set rounds or [best]."
            )


def _check(experiment: Experiment) -> None:
    if experiment.devices is not None:
        raise UsageError("Remove [devices]: over the wire, processes take real time.")
    if experiment.attack is not None:
        raise UsageError("Remove [attack]: over the wire, clients are honest.")
    if experiment.spec.buffer_config() is not None:
        raise UsageError(
            'cohort.mode = "buffered" is not supported over the wire: the order of updates, and so '
            "the bits, would depend on real time."
        )
    if experiment.engine.precision == "bf16":
        raise UsageError("Remove engine.precision: over the wire, clients compute in float32.")
    if experiment.evaluate is not None:
        raise UsageError("Remove evaluate: over the wire, no model is at hand after each round.")
    if experiment.stop:
        raise UsageError("Remove [stop]: over the wire, the server has no test examples.")
    if len(experiment.population) > MOST_CLIENTS:
        raise UsageError(
            f"Expected at most {MOST_CLIENTS} clients over the wire, one process each, got "
            f"{len(experiment.population)}. Lower data.clients."
        )


def _start_meter(local: LocalProcesses, fleet: str, counts: Path) -> str:
    """Start a relay in front of a server; returns its address."""
    listening = counts.with_suffix(".listening")
    listening.unlink(missing_ok=True)
    local.keep(
        "meter", "fedloom.simulation.wire.byte_meter", federation.ANY_PORT, fleet, str(counts)
    )
    local.wait_for(listening)
    through = listening.read_text()
    listening.unlink()
    return through


def _run(
    experiment: Experiment,
    local: LocalProcesses,
    processes: Sequence[Any],
    listeners: Sequence[Listener],
) -> dict[str, Any]:
    """Submit the run, follow it to its end and return its last status."""
    values = {n: v for n, v in experiment.spec.as_dict().items() if v is not None}
    if experiment.spec.session_noise() is not None:  # a server refuses noise that it could subtract
        values["privacy"] = {**values["privacy"], "noise": "secure"}
    run = federation.submit(local, values, local.folder / "initial.safetensors")
    reported = 0
    for status in federation.statuses(local, run):
        _check_there(processes)
        records = list(_records(status, experiment.spec))
        for record in records[reported:]:
            for listener in listeners:
                listener(run, record)
        reported = len(records)
        if status["state"] != "running":
            break
    return status


def _check_there(processes: Sequence[Any]) -> None:
    """Stop if a client ended: the server would continue with other bits."""
    dead = next((process for process in processes if process.exitcode is not None), None)
    if dead is not None:
        raise UnavailableError(
            f"{dead.name} ended with {dead.exitcode}; every client has to stay to the end. "
            "Run it again, with fewer clients if memory ran out."
        )


def _best(view: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The best model as in a simulation, which has no digest of it."""
    return None if view is None else {n: v for n, v in view.items() if n not in ("model", "kept")}


def _records(status: Mapping[str, Any], spec: RunSpec) -> Iterator[RoundRecord]:
    trained, begun, total_bytes = 0, None, 0
    for row in status["rounds"]:
        if row["state"] not in ("committed", "abandoned"):
            continue
        begun = row["opened_at"] if begun is None else begun
        trained += row["state"] == "committed" and counts(spec, RoundKind(row["kind"]))
        seconds = row["closed_at"] - row["opened_at"]
        accepted = row["accepted"]
        training, evaluation = row["training"] or {}, row["evaluation"] or {}
        moved = row["clients"] or {}
        total_bytes += moved.get("bytes_down", 0) + moved.get("bytes_up", 0)
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
            underflow=row["underflow"],
            bytes_down=moved.get("bytes_down", 0),
            bytes_up=moved.get("bytes_up", 0),
            total_bytes=total_bytes,
            wall_s=row["closed_at"] - begun,
            round_wall_s=seconds,
            clients_per_s=accepted / seconds if seconds else 0.0,
        )
