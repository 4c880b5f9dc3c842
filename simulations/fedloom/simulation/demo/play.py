"""Run the demo: a server, eight client processes, one model.

It uses the commands of a deployment: an authority, one-time tokens, clients enrolled over mTLS, a
submitted run, an exported model.
"""

import shutil
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text
from torch.nn import functional

from fedloom.cli.connection.api_client import Control
from fedloom.client.torch import TorchClient, load_file, parameters, save_file
from fedloom.protocol.errors import UnavailableError
from fedloom.simulation.data.population import Population
from fedloom.simulation.demo import baselines, data, progress, report
from fedloom.simulation.demo.baselines import Baselines, tensors, training_task
from fedloom.simulation.demo.client_main import SHARD
from fedloom.simulation.demo.data import all_held_out, shape_of
from fedloom.simulation.demo.model import SmallCNN, build
from fedloom.simulation.demo.picture import draw
from fedloom.simulation.demo.report import DemoResult
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.wire import federation
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
        _start_clients(processes, population, addresses["enrolment"])
        initial, model = folder / "initial.safetensors", folder / "model.safetensors"
        save_file(build(*shape_of(population), seed=settings.seed), initial)
        run = federation.submit(processes, settings.run, initial, NOTE)
        status, seconds = _watch(processes, run, console)
        console.print()
        federation.export(processes, run, model)
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
            federated_s=seconds,
        )
        draw(outcome, folder / "learning-curve.png")
        _conclude(outcome, model, population, console)
        _show_console(processes, f"{addresses['console']}/runs/{run}", console, keep=keep)
    return outcome


def _link(processes: LocalProcesses) -> str:
    link: str = Control(processes.server).post("login-links", body={"scope": "admin"})["url"]
    return link


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
            Text.assemble(("log in with     ", "dim"), _link(processes)),
            Text.assemble(("or later with   ", "dim"), again),
            Text("The server and its clients keep running. Ctrl-C ends them.", "dim"),
        ),
        soft_wrap=True,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends them too
    with suppress(KeyboardInterrupt):
        while True:
            processes.check()
            time.sleep(1.0)


def _start_clients(processes: LocalProcesses, population: Population, server: str) -> None:
    files = data.write(population, processes.folder / "shards")
    enrolling = []
    for number, name in enumerate(files):
        where = ("--dir", str(processes.server))
        invite = ("token", "create", "--client", name, *where)
        if number == 0:
            processes.show("fedloom", *invite)
        token: str = processes.command(*invite, quiet=True)["tokens"][0]["token"]
        target = ("--dir", str(processes.folder / name))
        if number == 0:
            shown = ("--server", server, "--token", f"{token[:16]}…")
            processes.show("fedloom", "client", "enroll", *shown, *target)
        enrolling.append(
            processes.begin("client", "enroll", "--server", server, "--token", token, *target)
        )
    for process in enrolling:
        processes.finish(process, "fedloom client enroll")
    for number, (name, shard) in enumerate(files.items()):
        config = processes.folder / name / "client.toml"
        words = ("client", "run", CLIENT, "--config", str(config))
        if number == 0:
            more = f" &   … and {len(files) - 1} more"
            processes.show("env", f"{SHARD}={shard}", "fedloom", *words, more=more)
        processes.keep(name, "fedloom.cli.main", *words, **{SHARD: str(shard)})


def _watch(processes: LocalProcesses, run: str, console: Console) -> tuple[dict[str, Any], float]:
    """Show the run until it ends; returns its last status and the seconds of its rounds."""
    begun = time.monotonic()
    with Live(console=console, refresh_per_second=8) as live:
        for status in federation.statuses(processes, run):
            live.update(progress.render(status, elapsed_s=time.monotonic() - begun))
            if status["state"] not in ("running", "paused"):
                break
    rounds = status["rounds"]
    return status, rounds[-1]["closed_at"] - rounds[0]["opened_at"]


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
