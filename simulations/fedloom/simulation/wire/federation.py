"""A real server on loopback: start it and its clients, submit a run, and follow the run.

Used by `fedloom up`, the demo and `over_the_wire`, which differ in clients and display.
"""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import digest_of
from fedloom.protocol.errors import UnavailableError
from fedloom.protocol.settings import toml
from fedloom.simulation.wire import progress
from fedloom.simulation.wire.processes import LocalProcesses

ANY_PORT = "127.0.0.1:0"
"""The system chooses a free port when the server binds it."""
POLL_S = 0.1
_START_S = 120.0


def start_server(
    processes: LocalProcesses, fleet: str = ANY_PORT, enrolment: str = ANY_PORT
) -> Mapping[str, str]:
    """Start a server, which is initialised first if there is none in its folder.

    Args:
        processes: of the server.
        fleet: address of a new server.
        enrolment: likewise.

    Returns:
        Its addresses: `fleet`, `enrolment`, `console`.
    """
    where = ("--dir", str(processes.server))
    if not (processes.server / "server.toml").exists():
        processes.command("server", "init", *where, "--fleet", fleet, "--enrolment", enrolment)
    processes.show("fedloom", "server", "run", *where, more=" &")
    processes.keep("server-process", "fedloom.cli.main", "server", "run", *where)
    control, deadline = Control(processes.server), time.monotonic() + _START_S
    while True:
        processes.check()
        try:
            addresses: Mapping[str, str] = control.get("server")
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return addresses


def enrol(processes: LocalProcesses, clients: Mapping[str, Path], server: str) -> None:
    """Enrol clients by tokens, all at once.

    Args:
        processes: of the server.
        clients: name → folder for its identity.
        server: address for enrolment.
    """
    enrolling = []
    for number, (name, folder) in enumerate(clients.items()):
        invite = ("token", "create", "--client", name, "--dir", str(processes.server))
        target = ("--dir", str(folder))
        token: str = processes.command(*invite, quiet=number > 0)["tokens"][0]["token"]
        if number == 0:
            shown = ("--server", server, "--token", f"{token[:16]}…")
            processes.show("fedloom", "client", "enroll", *shown, *target)
        enrolling.append(
            processes.begin("client", "enroll", "--server", server, "--token", token, *target)
        )
    for process in enrolling:
        processes.finish(process, "fedloom client enroll")


def start_clients(
    processes: LocalProcesses, code: str, clients: Mapping[str, Path], variable: str,
    data: Mapping[str, Path],
) -> None:  # fmt: skip
    """Start enrolled clients.

    Args:
        processes: of the server.
        code: training code, as `fedloom client run` takes it.
        clients: name → folder with its identity.
        variable: of the environment, which names a client's data.
        data: name → path of its data.
    """
    for number, (name, folder) in enumerate(clients.items()):
        words = ("client", "run", code, "--config", str(folder / "client.toml"))
        if number == 0:
            more = f" &   … and {len(clients) - 1} more"
            processes.show("env", f"{variable}={data[name]}", "fedloom", *words, more=more)
        processes.keep(name, "fedloom.cli.main", *words, **{variable: str(data[name])})


def watch(
    processes: LocalProcesses,
    run: str,
    console: Console,
    *,
    active: tuple[str, ...] = ("running", "paused"),
) -> dict[str, Any]:
    """Show a run while it is in one of the active states; returns its last status."""
    begun = time.monotonic()
    try:
        with Live(console=console, refresh_per_second=8) as live:
            for status in statuses(processes, run):
                live.update(progress.render(status, elapsed_s=time.monotonic() - begun))
                if status["state"] not in active:
                    break
    except BaseException:
        if not console.is_terminal:
            console.line()  # Live ends its last line on terminals alone
        raise
    return status


def login_link(processes: LocalProcesses) -> str:
    """A one-time link to the console, valid for two minutes."""
    link: str = Control(processes.server).post("login-links", body={"scope": "admin"})["url"]
    return link


def stay(processes: LocalProcesses) -> None:
    """Wait for Ctrl-C or SIGTERM while everything runs.

    Raises:
        UnavailableError: a process has ended.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        while True:
            processes.check()
            time.sleep(1.0)


def submit(processes: LocalProcesses, run: Mapping[str, Any], initial: Path, note: str = "") -> str:
    """Submit a run and return its identifier.

    Args:
        processes: of the server.
        run: settings of a run.toml.
        initial: the file of the initial model.
        note: comment lines above the settings in the file.
    """
    path = processes.folder / "run.toml"
    path.write_text(note + toml.dumps(run), encoding="utf-8")
    words = ("run", "submit", str(path), "--model", str(initial), "--dir", str(processes.server))
    identifier: str = processes.command(*words)["id"]
    return identifier


def statuses(processes: LocalProcesses, run: str) -> Iterator[dict[str, Any]]:
    """The run's status, polled endlessly; the caller stops.

    Raises:
        UnavailableError: a process has ended.
    """
    control = Control(processes.server)
    while True:
        processes.check()
        yield control.get("runs", run)
        time.sleep(POLL_S)


def download(processes: LocalProcesses, run: str, number: int, path: Path) -> None:
    """Write the model that a round of the run committed into a file."""
    control = Control(processes.server)
    control.download("models", digest_of(control, run, number), out=path)


def export(processes: LocalProcesses, run: str, path: Path) -> None:
    """Write the run's last model into a file."""
    processes.command("model", "export", run, "--out", str(path), "--dir", str(processes.server))
