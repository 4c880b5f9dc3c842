"""A real server on loopback: start it, submit a run, and follow the run.

Used by the demo and `over_the_wire`, which differ in clients and display.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.settings import toml
from fedloom.simulation.wire.processes import LocalProcesses

ANY_PORT = "127.0.0.1:0"
"""The system chooses a free port when the server binds it."""
POLL_S = 0.1


def start_server(processes: LocalProcesses) -> Mapping[str, str]:
    """Initialise a server and start it; returns its addresses: `fleet`, `enrolment`, `console`."""
    where = ("--dir", str(processes.server))
    processes.command("server", "init", *where, "--fleet", ANY_PORT, "--enrolment", ANY_PORT)
    processes.show("fedloom", "server", "run", *where, more=" &")
    processes.keep("server-process", "fedloom.cli.main", "server", "run", *where)
    processes.wait_for(processes.server / "control.sock")
    addresses: Mapping[str, str] = Control(processes.server).get("server")
    return addresses


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


def export(processes: LocalProcesses, run: str, path: Path) -> None:
    """Write the run's last model into a file."""
    processes.command("model", "export", run, "--out", str(path), "--dir", str(processes.server))
