"""`simulate` runs an experiment, with its output and its display."""

import copy
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.engine import RunState
from fedloom.server.planning import limits
from fedloom.server.planning.best import mark
from fedloom.server.planning.spec import RunSpec
from fedloom.simulation.caller_state import frozen_heap, preserved
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output import words, write_folder
from fedloom.simulation.output.files import OutputFolder
from fedloom.simulation.output.history import (
    BY_CALLER,
    INTERRUPTED,
    ClientRecord,
    Result,
    RoundRecord,
)
from fedloom.simulation.output.progress import Progress
from fedloom.simulation.output.summary import summary
from fedloom.simulation.signature import check_takes
from fedloom.simulation.training.evaluate import read_only
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.workers.failures import NO_ROOM
from fedloom.strategies import Params
from fedloom.strategies.masking.sessions import sum_lines
from fedloom.strategies.privacy import claim_lines

OnRound = Callable[[RoundRecord, Params], bool | None]
"""Called with each round and the model after it, read-only arrays by name; True ends the run."""
OnClient = Callable[[ClientRecord], object]
Listener = Callable[[RoundRecord], object]
CHECKPOINT = "checkpoint.safetensors"


@preserved()
def simulate(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    on_round: OnRound | None = None,
    on_client: OnClient | None = None,
    show: bool = True,
    console: Console | None = None,
    command: str = "",
) -> Result:
    """Run an experiment to its end.

        result = simulate(experiment, out="out/first")
        print(result.best("accuracy"))

    Ctrl-C ends it after the last finished round; `resume=True` continues to the same bits. Torch's
    threads and all global random states are as before when it returns or raises.

    Args:
        experiment: what to simulate.
        out: folder for the report, plots, metrics, the model and the checkpoint; None for none.
        resume: continue the simulation in `out`; begin if there is none.
        accept_changes: with `resume`, continue also if the code, the examples or the initial model
            changed, such as to correct an error; the folder's simulation.json names the changes.
        on_round: called with every round and the model after it, read-only arrays by name. If it
            returns True, the simulation ends after this round.
        on_client: called with every client of a round, in the same order for any number of
            workers, before `on_round`.
        show: show a progress display, and a summary at the end.
        console: for both; default: the terminal.
        command: that repeats the simulation, for the report.

    Returns:
        Every round and the last model.

    Raises:
        UsageError: settings are invalid, or `out` holds another experiment, or one with other
            code, examples or initial values.
        UnavailableError: a worker died, or the disk is full.
    """
    _check_resumption(out, resume=resume, accept_changes=accept_changes)
    if on_round is not None:
        check_takes("on_round", on_round, "record", "params")
    if on_client is not None:
        check_takes("on_client", on_client, "record")
    console = console or Console()
    with ExitStack() as stack:
        folder = None
        if out is not None:
            stack.enter_context(_roomy(Path(out)))
            folder = stack.enter_context(OutputFolder(Path(out), resume=resume))
            folder.check(write_folder.resolved(experiment))
        running = _running(experiment, folder, resume=resume, accept_changes=accept_changes)
        simulation = stack.enter_context(running)
        if folder is not None:  # the experiment was not refused
            folder.configure(write_folder.given(experiment), write_folder.resolved(experiment))
            folder.note_changes(simulation.changes, simulation.progress.trained)
        before = folder.cut(simulation.progress.opened) if folder is not None else []
        freeze = stack.enter_context(frozen_heap())
        listeners: list[Listener] = [lambda _: freeze()]
        if folder is not None:
            best = partial(_best, simulation)
            trackers = write_folder.trackers(folder, experiment, before, best())
            tracked = stack.enter_context(trackers)
            listeners += [folder.append, tracked.append, lambda _: tracked.mark(best())]
        manifest = simulation.worker_setup.manifest
        if show and (claim := limits.claim(experiment.spec, manifest)) is not None:
            console.print("\n".join(claim_lines(claim)), style="dim", markup=False)
        if show and (facts := experiment.spec.sum_facts()) is not None:
            lines = sum_lines(facts)
            console.print("\n".join(lines), style="dim", markup=False)
        records, stopped = _rounds(
            simulation,
            before,
            listeners,
            console if show else None,
            on_round=on_round,
            on_client=on_client,
        )
        progress = simulation.progress
        result = Result(
            records=tuple(records),
            params=copy.copy(dict(simulation.params)),
            digest=simulation.digest(),
            folder=None if folder is None else folder.path,
            engine=simulation.worker_setup.text,
            stopped=stopped,
            privacy=spent(experiment.spec, progress.trained, progress.opened),
            best_model=_best(simulation),
            best_params=None if simulation.best is None else dict(simulation.best),
            enough="" if stopped else simulation.reason,
        )
        if folder is not None:
            write_folder.write(
                folder, result, experiment, simulation.worker_setup.manifest.dtypes, command
            )
    if show:
        console.print(summary(result))
    return result


def _check_resumption(out: object, *, resume: bool, accept_changes: bool) -> None:
    if resume and out is None:
        raise UsageError("resume needs the folder of a simulation; set out.")
    if accept_changes and not resume:
        raise UsageError(f"{words.ACCEPT} is for a simulation that resumes: add {words.RESUME}.")


def _best(simulation: Simulation) -> dict[str, Any] | None:
    """The mark of the best model so far."""
    return mark(simulation.experiment.spec, simulation.progress.best)


def spent(spec: RunSpec, trained: int, opened: int) -> tuple[str, ...]:
    """Lines with the privacy claim of a run after these rounds; empty without privacy."""
    plan = spec.privacy_plan()
    if plan is None:
        return ()
    claim = plan.claim()
    lines = [f"{plan.after(trained, opened)} after {trained} rounds, for {claim['protects']}"]
    lines += [f"against {claim['against']}", f"neighbours {claim['neighbours']}"]
    lines += [f"sampling {claim['sampling']}", f"noise {claim['noise']}, {claim['randomness']}"]
    if plan.released(trained, opened) >= plan.last and (why := plan.stopped(trained)):
        lines.append(f"stopped: {why}")
    return tuple(lines)


@contextmanager
def _roomy(folder: Path) -> Iterator[None]:
    """Explain the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise UnavailableError(
            f"No room for the results in {folder}: {error.strerror}. Free disk space; "
            f"{words.RESUME} continues."
        ) from error


@contextmanager
def _running(
    experiment: Experiment, folder: OutputFolder | None, *, resume: bool, accept_changes: bool
) -> Iterator[Simulation]:
    checkpoint = None if folder is None else folder.path / CHECKPOINT
    simulation = Simulation(experiment, checkpoint, resume=resume, accept_changes=accept_changes)
    try:
        yield simulation
    finally:
        simulation.close()


def _rounds(
    simulation: Simulation,
    before: list[RoundRecord],
    listeners: Sequence[Listener],
    console: Console | None,
    *,
    on_round: OnRound | None,
    on_client: OnClient | None,
) -> tuple[list[RoundRecord], str]:
    """Do the rounds; returns all rounds and why they ended early."""
    records = list(before)
    spec = simulation.experiment.spec
    progress = Progress(
        spec.rounds,
        console,
        name=spec.name,
        engine=simulation.worker_setup.text,
        before=before,
        show=console is not None,
    )
    goal = spec.round_config().goal
    try:
        with progress, terminable():
            for record in simulation.rounds(lambda done: progress.working(done, goal)):
                records.append(record)
                progress.update(record)
                for listen in listeners:
                    listen(record)
                if on_client is not None:
                    for client in simulation.clients():
                        on_client(client)
                if on_round is not None and ends(on_round(record, read_only(simulation.params))):
                    simulation.save()
                    return records, BY_CALLER
    except KeyboardInterrupt:
        simulation.save(noted=False)
        return records, INTERRUPTED
    return records, "" if simulation.state is RunState.FINISHED else simulation.reason


def ends(answer: object) -> bool:
    """Whether `on_round` ends the simulation.

    Raises:
        UsageError: it returned something else than True, False or None, which would end it as
            well if it were taken for true.
    """
    if answer is None or isinstance(answer, bool | np.bool_):
        return bool(answer)
    raise UsageError(
        f"on_round: expected True to end the simulation, or False or None, got {answer!r:.80}. "
        "Return nothing to continue."
    )


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a simulation like Ctrl-C, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
