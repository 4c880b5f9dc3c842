"""`simulate` runs an experiment, with its output and its display."""

import copy
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.planning import limits
from fedloom.server.planning.spec import RunSpec
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output import write_folder
from fedloom.simulation.output.files import OutputFolder
from fedloom.simulation.output.history import INTERRUPTED, Result, RoundRecord
from fedloom.simulation.output.progress import Progress
from fedloom.simulation.output.summary import summary
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.workers.failures import NO_ROOM
from fedloom.strategies.exact.grid import grid_lines
from fedloom.strategies.privacy import claim_lines

OnRound = Callable[[RoundRecord], bool | None]
CHECKPOINT = "checkpoint.safetensors"


def simulate(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    show: bool = True,
    console: Console | None = None,
    command: str = "",
) -> Result:
    """Run an experiment to its end.

        result = simulate(experiment, out="out/first")
        print(result.best("accuracy"))

    Ctrl-C ends it after the last finished round; `resume=True` continues to the same bits.

    Args:
        experiment: what to simulate.
        out: folder for the report, plots, metrics, the model and the checkpoint; None for none.
        resume: continue the simulation in `out`; begin if there is none.
        on_round: called with every round; if it returns True, the simulation ends.
        show: show a progress display, and a summary at the end.
        console: for both; default: the terminal.
        command: that repeats the simulation, for the report.

    Returns:
        Every round and the last model.

    Raises:
        UsageError: settings are invalid, or `out` holds another experiment.
        UnavailableError: a worker died, or the disk is full.
    """
    if resume and out is None:
        raise UsageError("resume needs the folder of a simulation; set out.")
    console = console or Console()
    with ExitStack() as stack:
        folder = None
        if out is not None:
            stack.enter_context(_roomy(Path(out)))
            folder = stack.enter_context(OutputFolder(Path(out), resume=resume))
            folder.configure(write_folder.given(experiment), write_folder.resolved(experiment))
        simulation = stack.enter_context(_running(experiment, folder, resume=resume))
        before = folder.cut(simulation.progress.opened) if folder is not None else []
        listeners = [on_round] if on_round is not None else []
        if folder is not None:
            tracked = stack.enter_context(write_folder.trackers(folder, experiment, before))
            listeners = [folder.append, tracked.append, *listeners]
        manifest = simulation.worker_setup.manifest
        if show and (claim := limits.claim(experiment.spec, manifest)) is not None:
            console.print("\n".join(claim_lines(claim)), style="dim", markup=False)
        if show and (grid := experiment.spec.grid()) is not None:
            lines = grid_lines(grid.facts(experiment.spec.precision))
            console.print("\n".join(lines), style="dim", markup=False)
        records, stopped = _rounds(simulation, before, listeners, console if show else None)
        progress = simulation.progress
        result = Result(
            records=tuple(records),
            params=copy.copy(dict(simulation.params)),
            digest=simulation.digest(),
            folder=None if folder is None else folder.path,
            engine=simulation.worker_setup.text,
            stopped=stopped,
            privacy=spent(experiment.spec, progress.trained, progress.opened),
        )
        if folder is not None:
            write_folder.write(
                folder, result, experiment, simulation.worker_setup.manifest.dtypes, command
            )
    if show:
        console.print(summary(result))
    return result


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
            f"No room for the results in {folder}: {error.strerror}. Free disk space; --resume "
            "continues."
        ) from error


@contextmanager
def _running(
    experiment: Experiment, folder: OutputFolder | None, *, resume: bool
) -> Iterator[Simulation]:
    checkpoint = None if folder is None else folder.path / CHECKPOINT
    simulation = Simulation(experiment, checkpoint, resume=resume)
    try:
        yield simulation
    finally:
        simulation.close()


def _rounds(
    simulation: Simulation,
    before: list[RoundRecord],
    listeners: Sequence[OnRound],
    console: Console | None,
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
                answers = [listen(record) for listen in listeners]
                if any(answers):
                    simulation.save()
                    return records, "stopped by the caller"
    except KeyboardInterrupt:
        simulation.save(noted=False)
        return records, INTERRUPTED
    return records, simulation.reason


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
