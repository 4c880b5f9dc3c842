"""The main job from end to end: a server, eight clients in processes of their own, one model.

Everything is what a deployment does, by the same commands: an authority, one-time tokens, enrolled
clients over mTLS, a submitted run, an exported model.
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
from fedloom.simulation.demo import baselines, progress, report, shards
from fedloom.simulation.demo.baselines import Baselines, tensors, training_task
from fedloom.simulation.demo.model import SmallCNN, build
from fedloom.simulation.demo.picture import draw
from fedloom.simulation.demo.processes import ANY_PORT, Stage
from fedloom.simulation.demo.report import Outcome
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.demo.shards import Federation

RUN_TOML = """\
# What the demo submits; `fedloom run template` explains every setting.
name = "demo"
rounds = {rounds}
seed = {seed}
evaluate = true

[cohort]
goal = {num_clients}
quorum = {num_clients}

[train]
epochs = {epochs}
batch_size = {batch_size}
learning_rate = {learning_rate}
"""


def play(
    federation: Federation,
    settings: DemoSettings,
    folder: Path,
    console: Console,
    *,
    keep: bool = False,
) -> Outcome:
    """Do the main job and report it.

    Args:
        federation: the data, dealt out.
        settings: of the experiment.
        folder: is emptied, and holds the server's state, logs and results afterwards.
        console: for the display.
        keep: leave the server and its clients running at the end, until Ctrl-C.

    Returns:
        What was measured.

    Raises:
        UnavailableError: a process or a command failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts = report.label_counts(federation)
    console.print(report.holdings(counts))
    console.print()
    with ExitStack() as stack:
        stage = stack.enter_context(Stage(folder, console))
        _start_server(stage)
        _start_clients(stage, federation)
        run, initial = _submit(stage, federation, settings)
        status, seconds = _watch(stage, run, console)
        console.print()
        model = folder / "model.safetensors"
        stage.command("model", "export", run, "--out", str(model), "--dir", str(stage.server))
        address = Control(stage.server).get("server")["console"]
        if not keep:
            stack.pop_all().close()
        if status["state"] != "finished":
            raise UnavailableError(f"The run is {status['state']}: {status['reason']}")
        console.print()
        compared = _compare(federation, settings, console)
        outcome = Outcome(
            settings=settings,
            counts=counts,
            num_held_out=len(federation.held_out.y),
            federated=_accuracies(federation, settings, status, initial, model),
            baselines=compared,
            federated_s=seconds,
        )
        draw(outcome, folder / "learning-curve.png")
        _conclude(outcome, model, federation, console)
        _show_console(stage, f"{address}/runs/{run}", console, keep=keep)
    return outcome


def _link(stage: Stage) -> str:
    """The address that logs somebody in to the console, once."""
    link: str = Control(stage.server).post("login-links", body={"scope": "admin"})["url"]
    return link


def _show_console(stage: Stage, address: str, console: Console, *, keep: bool) -> None:
    """Say where the console is; where it is kept, wait until somebody has looked enough."""
    if not keep:
        console.print(
            Text.assemble(
                ("console         ", "dim"), address,
                (" while it ran; leave it running by ", "dim"), "make demo KEEP=1",
            ),
            soft_wrap=True,
        )  # fmt: skip
        return
    again = f"fedloom console --dir {_near(stage.server)}"
    console.print(
        Group(
            Text.assemble(("console         ", "dim"), address),
            Text.assemble(("log in by       ", "dim"), _link(stage)),
            Text.assemble(("or later by     ", "dim"), again),
            Text("The server and its clients go on. Ctrl-C ends them.", "dim"),
        ),
        soft_wrap=True,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a kill ends them too
    with suppress(KeyboardInterrupt):
        while True:
            stage.check()
            time.sleep(1.0)


def _start_server(stage: Stage) -> None:
    where = ("--dir", str(stage.server))
    stage.command("server", "init", *where, "--fleet", ANY_PORT, "--enrolment", ANY_PORT)
    stage.show("fedloom", "server", "run", *where, more=" &")
    stage.keep("server-process", "fedloom.cli.main", "server", "run", *where)
    stage.wait_for(stage.server / "control.sock")


def _start_clients(stage: Stage, federation: Federation) -> None:
    """Enrol every client with its own token and start its process."""
    files = shards.write(federation, stage.folder / "shards")
    server = Control(stage.server).get("server")["enrolment"]
    enrolling = []
    for number, name in enumerate(files):
        where = ("--dir", str(stage.server))
        invite = ("token", "create", "--client", name, *where)
        if number == 0:
            stage.show("fedloom", *invite)
        token: str = stage.command(*invite, quiet=True)["tokens"][0]["token"]
        target = ("--dir", str(stage.folder / name))
        if number == 0:
            shown = ("--server", server, "--token", f"{token[:16]}…")
            stage.show("fedloom", "client", "enroll", *shown, *target)
        enrolling.append(
            stage.begin("client", "enroll", "--server", server, "--token", token, *target)
        )
    for process in enrolling:
        stage.finish(process, "fedloom client enroll")
    for number, (name, shard) in enumerate(files.items()):
        config = stage.folder / name / "client.toml"
        module = "fedloom.simulation.demo.client_main"
        words = (module, "--config", str(config), "--shard", str(shard))
        if number == 0:
            more = f" &   … and {len(files) - 1} more"
            stage.show("python", "-m", *words, more=more)
        stage.keep(name, *words)


def _submit(stage: Stage, federation: Federation, settings: DemoSettings) -> tuple[str, Path]:
    initial = stage.folder / "initial.safetensors"
    train = federation.train
    save_file(build(train.image_shape, train.num_classes, seed=settings.seed), initial)
    spec = stage.folder / "run.toml"
    spec.write_text(
        RUN_TOML.format(
            rounds=settings.rounds,
            seed=settings.seed,
            num_clients=settings.num_clients,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
        )
    )
    words = ("run", "submit", str(spec), "--model", str(initial), "--dir", str(stage.server))
    run: str = stage.command(*words)["id"]
    return run, initial


def _watch(stage: Stage, run: str, console: Console) -> tuple[dict[str, Any], float]:
    """Show the run until it ends; returns its last status and how long its rounds took."""
    control = Control(stage.server)
    begun = time.monotonic()
    with Live(console=console, refresh_per_second=8) as live:
        while True:
            stage.check()
            status = control.get("runs", run)
            live.update(progress.render(status, elapsed_s=time.monotonic() - begun))
            if status["state"] not in ("running", "paused"):
                rounds = status["rounds"]
                return status, rounds[-1]["closed_at"] - rounds[0]["opened_at"]
            time.sleep(0.15)


def _accuracies(
    federation: Federation,
    settings: DemoSettings,
    status: dict[str, Any],
    initial: Path,
    model: Path,
) -> tuple[float, ...]:
    """Accuracy after 0, 1, … rounds: the clients' own, and the last from the exported file."""
    shape, num_classes = federation.train.image_shape, federation.train.num_classes
    judge = SmallCNN(shape, num_classes)
    task = training_task("judge", 0, settings)
    client = TorchClient(
        judge,
        tensors(federation.held_out),
        functional.cross_entropy,
        evaluate=tensors(federation.held_out),
    )
    found = {p.rounds: p.accuracy for p in progress.curve(status) if p.accuracy is not None}
    for rounds, path in ((0, initial), (settings.rounds, model)):
        load_file(judge, path)
        found[rounds] = client.evaluate(parameters(judge), task)[1]["accuracy"]
    return tuple(found.get(number, float("nan")) for number in range(settings.rounds + 1))


def _compare(federation: Federation, settings: DemoSettings, console: Console) -> Baselines:
    with console.status("training the same model on all data at once, and on each shard alone"):
        return baselines.measure(federation, settings)


def _conclude(outcome: Outcome, model: Path, federation: Federation, console: Console) -> None:
    console.print(Rule(style="dim"))
    console.print(report.summary(outcome))
    shape, num_classes = federation.train.image_shape, federation.train.num_classes
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
    """A path as one would type it from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def digits_or_mnist(name: str, folder: Path | None, settings: DemoSettings) -> Federation:
    """The data of a demo, dealt out."""
    return shards.mnist(folder, settings) if name == "mnist" and folder else shards.digits(settings)


def threads() -> None:
    """One thread for this process's own torch: the cores belong to the clients."""
    torch.set_num_threads(1)
