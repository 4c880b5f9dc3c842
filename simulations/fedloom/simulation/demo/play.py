"""Run the demo: a server, eight client processes, one model.

It uses the commands of a deployment: an authority, one-time tokens, clients enrolled over mTLS, a
submitted run, an exported model.
"""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.rule import Rule
from rich.text import Text
from torch.nn import functional

from fedloom.client.torch import TorchClient, load_file, parameters, save_file
from fedloom.protocol.errors import UnavailableError
from fedloom.simulation.data.population import Population
from fedloom.simulation.demo import baselines, data, report, secrecy
from fedloom.simulation.demo.baselines import Baselines, tensors, training_task
from fedloom.simulation.demo.client_main import SHARD
from fedloom.simulation.demo.data import all_held_out, shape_of
from fedloom.simulation.demo.model import SmallCNN, build
from fedloom.simulation.demo.picture import draw
from fedloom.simulation.demo.report import DemoResult
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.wire import federation, progress
from fedloom.simulation.wire.processes import LocalProcesses

CLIENT = "fedloom.simulation.demo.client_main:client"
NOTE = "# The run of the demo; `fedloom run template` explains every setting.\n"


def play(
    population: Population,
    settings: DemoSettings,
    folder: Path,
    console: Console,
    *,
    keep: bool = False,
) -> DemoResult:
    """Run the demo and report it.

    Args:
        population: the clients and their data.
        settings: of the experiment.
        folder: for the server's state, logs and results; emptied first.
        console: for the display.
        keep: keep the server and its clients running at the end, until Ctrl-C.

    Returns:
        The results.

    Raises:
        UnavailableError: a process or a command failed.
    """
    torch.set_num_threads(1)  # the cores are for the clients
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts = report.label_counts(population)
    console.print(report.holdings(counts))
    console.print()
    with ExitStack() as stack:
        processes = stack.enter_context(LocalProcesses(folder, console))
        addresses = federation.start_server(processes)
        _start_clients(processes, population, addresses["enrolment"], settings.policy)
        initial, model = folder / "initial.safetensors", folder / "model.safetensors"
        save_file(build(*shape_of(population), seed=settings.seed), initial)
        run = federation.submit(processes, settings.run, initial, NOTE)
        status = federation.watch(processes, run, console)
        console.print()
        federation.export(processes, run, model)
        seen = secrecy.seen(processes, status) if settings.masked else None
        if not keep:
            stack.pop_all().close()
        if status["state"] != "finished":
            raise UnavailableError(f"The run is {status['state']}: {status['reason']}")
        console.print()
        compared = _compare(population, settings, console)
        outcome = DemoResult(
            settings=settings,
            counts=counts,
            num_held_out=len(all_held_out(population)),
            federated=_accuracies(population, settings, status, initial, model),
            baselines=compared,
            federated_s=status["rounds"][-1]["closed_at"] - status["rounds"][0]["opened_at"],
        )
        draw(outcome, folder / "learning-curve.png")
        _conclude(outcome, model, population, console)
        if seen is not None:
            console.print(secrecy.table(seen))
            console.print()
        _show_console(processes, f"{addresses['console']}/runs/{run}", console, keep=keep)
    return outcome


def _show_console(processes: LocalProcesses, address: str, console: Console, *, keep: bool) -> None:
    """Print the console's address; with `keep`, wait for Ctrl-C."""
    if not keep:
        console.print(
            Text.assemble(
                ("console         ", "dim"), address,
                (" while it ran; keep it running with ", "dim"), "make demo KEEP=1",
            ),
            soft_wrap=True,
        )  # fmt: skip
        return
    again = f"fedloom console --dir {_near(processes.server)}"
    console.print(
        Group(
            Text.assemble(("console         ", "dim"), address),
            Text.assemble(("log in with     ", "dim"), federation.login_link(processes)),
            Text.assemble(("or later with   ", "dim"), again),
            Text("The server and its clients keep running. Ctrl-C ends them.", "dim"),
        ),
        soft_wrap=True,
    )
    federation.stay(processes)


def _start_clients(
    processes: LocalProcesses, population: Population, server: str, policy: str
) -> None:
    files = data.write(population, processes.folder / "shards")
    folders = {name: processes.folder / name for name in files}
    federation.enrol(processes, folders, server)
    for folder in folders.values() if policy else ():
        (folder / "policy.toml").write_text(policy)
    federation.start_clients(processes, CLIENT, folders, SHARD, files)


def _accuracies(
    population: Population,
    settings: DemoSettings,
    status: dict[str, Any],
    initial: Path,
    model: Path,
) -> tuple[float, ...]:
    """Accuracy after 0, 1, … rounds, from the clients; first and last from the model files."""
    model_to_test = SmallCNN(*shape_of(population))
    task = training_task("judge", 0, settings)
    held_out = tensors(all_held_out(population))
    client = TorchClient(model_to_test, held_out, functional.cross_entropy, evaluate=held_out)
    found = {p.rounds: p.accuracy for p in progress.curve(status) if p.accuracy is not None}
    for rounds, path in ((0, initial), (settings.rounds, model)):
        load_file(model_to_test, path)
        found[rounds] = client.evaluate(parameters(model_to_test), task)[1]["accuracy"]
    return tuple(found.get(number, float("nan")) for number in range(settings.rounds + 1))


def _compare(population: Population, settings: DemoSettings, console: Console) -> Baselines:
    with console.status("training the same model on all data at once, and on each shard alone"):
        return baselines.measure(population, settings)


def _conclude(outcome: DemoResult, model: Path, population: Population, console: Console) -> None:
    console.print(Rule(style="dim"))
    console.print(report.summary(outcome))
    shape, num_classes = shape_of(population)
    here, python = _near(model), _near(Path(sys.executable))
    code = (
        "from fedloom.client.torch import load_file; "
        "from fedloom.simulation.demo.model import SmallCNN; "
        f"model = SmallCNN({shape}, {num_classes}); load_file(model, '{here}'); print(model)"
    )
    picture = here.with_name("learning-curve.png")
    console.print(
        Group(
            Text(),
            Text.assemble(("learning curve  ", "dim"), str(picture)),
            Text.assemble(("model           ", "dim"), str(here)),
            Text.assemble(("load it with    ", "dim"), f'{python} -c "{code}"'),
        ),
        soft_wrap=True,
    )


def _near(path: Path) -> Path:
    """A path relative to the working folder, if inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
