"""Run a folder's federation on this machine: a server, a client for each file of data, one run.

State stays in the folder: a second call starts the same server and clients. A run that was
interrupted continues, unless what it depends on has changed.
"""

import json
import random
import socket
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fedloom.cli.common.output import make_table
from fedloom.cli.connection.api_client import Control
from fedloom.cli.project.deploy import DeployCommands, deploy_commands
from fedloom.cli.project.kinds import requirement_of
from fedloom.protocol.errors import UnavailableError
from fedloom.simulation.output import words
from fedloom.simulation.project.local_project import CODE, RUN, LocalProject
from fedloom.simulation.project.state import only_one_up, remove_state
from fedloom.simulation.wire import federation
from fedloom.simulation.wire.processes import LocalProcesses

_ACTIVE = ("running", "paused")
_PORTS = range(20_000, 30_000)
"""Below those that systems give to outgoing connections, so that they are free next time, too."""


def up(
    project: LocalProject, console: Console, *, initial: Path | None, fresh: bool, keep: bool
) -> dict[str, Any]:
    """Train in a folder, and show it.

    Args:
        project: the folder.
        console: for the display.
        initial: model to begin with; None: that of the training code.
        fresh: begin with a new server and new clients.
        keep: keep server and clients running at the end, until Ctrl-C.

    Returns:
        The result: `run`, `state`, `rounds`, `before` and `after` (metrics by name), `seconds`,
        `model` and `console`.

    Raises:
        UsageError: the folder is in use, or its code or settings are not valid.
        UnavailableError: a process ended, or the run did not finish.
    """
    with only_one_up(project), LocalProcesses(project.state, console) as processes:
        if fresh:
            remove_state(project)
        drawn = project.state / "initial.safetensors"
        first = str(next(iter(project.data.values())))
        init = ("model", "init", project.client, "--out", str(drawn))
        if initial is None:  # beside the start of the server, which takes as long
            processes.show("fedloom", *init)
            drawing = processes.begin(*init, DATA=first)
        addresses = federation.start_server(processes, _free_address(), _free_address())
        folders = {name: project.state / "clients" / name for name in project.data}
        new = {n: path for n, path in folders.items() if not (path / "client.toml").exists()}
        federation.enrol(processes, new, addresses["enrolment"])
        if initial is None:
            processes.finish(drawing, "fedloom model init")
        federation.start_clients(processes, project.client, folders, "DATA", project.data)
        run = _run(processes, project, initial or drawn, console)
        _show_link("console", processes, console)
        status = federation.watch(processes, run, console, active=_ACTIVE if keep else ("running",))
        if status["state"] != "finished":
            raise UnavailableError(
                f"The run is {status['state']}: {status['reason'] or 'by an operator'}. The "
                f"clients' logs are {project.state}/*.log; `fedloom up` again continues a paused "
                "run, or begins a new one if the folder's files have changed."
            )
        console.print()
        found = _result(processes, project, status)
        found["console"] = addresses["console"]
        _show(found, project, console, keep=keep)
        if keep:
            _show_link("log in ", processes, console)
            console.print("Server and clients keep running. Ctrl-C ends them.", style="dim")
            federation.stay(processes)
    return found


def _show_link(name: str, processes: LocalProcesses, console: Console) -> None:
    link = federation.login_link(processes)
    console.print(Text.assemble((f"{name}  ", "dim"), link), soft_wrap=True)


def _free_address() -> str:
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return f"127.0.0.1:{port}"


def _run(processes: LocalProcesses, project: LocalProject, initial: Path, console: Console) -> str:
    """The run to watch: the interrupted one if it is the same, else a new one."""
    control, record = Control(processes.server), project.state / "run.json"
    digest = project.digest(initial)
    last = json.loads(record.read_text("utf-8")) if record.exists() else {}
    for run in control.get("runs")["runs"]:
        identifier: str = run["id"]
        if run["state"] not in _ACTIVE:
            continue
        if last == {"run": identifier, "digest": digest}:
            if run["state"] == "paused":
                control.post("runs", identifier, "resume")
            console.print(f"Continuing {identifier}, which was interrupted.")
            return identifier
        control.post("runs", identifier, "stop")
        console.print(f"Stopped {identifier}, as the folder's files have changed since.")
    words_of = ("run", "submit", str(project.folder / RUN), "--model", str(initial))
    submitted: str = processes.command(*words_of, "--dir", str(processes.server))["id"]
    record.write_text(json.dumps({"run": submitted, "digest": digest}), "utf-8")
    return submitted


def _result(
    processes: LocalProcesses, project: LocalProject, status: dict[str, Any]
) -> dict[str, Any]:
    model = project.folder / "model.safetensors"
    federation.export(processes, status["id"], model)
    rounds = status["rounds"]
    measured = [values for r in rounds if (values := (r["evaluation"] or {}).get("values"))]
    return {
        "run": status["id"],
        "state": status["state"],
        "rounds": status["rounds_committed"],
        "before": measured[0] if measured else {},
        "after": measured[-1] if measured else {},
        "seconds": rounds[-1]["closed_at"] - rounds[0]["opened_at"],
        "model": str(model),
    }


def _show(found: dict[str, Any], project: LocalProject, console: Console, *, keep: bool) -> None:
    before, after = found["before"], found["after"]
    rows = [[n, words.metric(n, before.get(n)), words.metric(n, after[n])] for n in sorted(after)]
    clients = words.things(len(project.data), "client")
    rounds = words.things(found["rounds"], "round")
    console.print(
        f"\n{clients} trained {rounds} in {words.duration(found['seconds'])}. On their held-out "
        "examples:"
    )
    console.print(make_table(["metric", ">before", ">after"], rows))
    console.print(Text.assemble(("\nmodel    ", "dim"), found["model"]), soft_wrap=True)
    if not keep:
        console.print("[dim]console  fedloom up --keep leaves it running[/]")
    code = (project.folder / CODE).read_text("utf-8")
    file = next(iter(project.data.values())).name
    _show_commands(deploy_commands(list(project.data), file, requirement_of(code)), console)


def _show_commands(commands: DeployCommands, console: Console) -> None:
    console.print("\nThe same files on real devices (more in README.md):")
    for where, lines in (
        ("on the server's machine, in this folder", commands.server),
        ("on each device, with these files and its token", commands.device),
        ("then, on the server's machine", commands.operator),
    ):
        console.print(f"  [dim]# {where}[/]")
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)
