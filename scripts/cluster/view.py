"""Show a cluster: what runs where, the console's login link, and what to try."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster import devices, replicas
from cluster.processes import Processes
from cluster.settings import DEFAULT, REPLICAS, Settings
from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import FedloomError

Row = tuple[str, str, str, str, str]


def show(folder: Path) -> None:
    """Show the cluster of a folder.

    Raises:
        UsageError: there is none.
    """
    settings, processes = Settings.read(folder), Processes(folder)
    driver = replicas.driver(settings)
    print()
    for line in _aligned([*_rows(folder, settings, processes, driver)]):
        print(line)
    print()
    for line in _hints(folder, settings, processes, driver):
        print(line)


def _rows(
    folder: Path, settings: Settings, processes: Processes, driver: str | None
) -> Iterator[Row]:
    near = _near(folder / "logs")
    yield "NAME", "ROLE", "PORTS OF 127.0.0.1", "PID", "LOG"
    for name, role, ports in (
        ("haproxy", "passes TLS on to the replicas", f"{settings.port}"),
        *((name, _role(settings, name, driver), _ports(settings, name)) for name in REPLICAS),
        ("postgresql", "the ledger", f"{settings.database_port}"),
        ("s3", "models and updates, in memory", f"{settings.store_port}"),
    ):
        pid = _pid(processes, name)
        yield name, role if pid else "has ended", ports, pid, f"{near}/{name}.log"
    for name in devices.names(settings):
        pid = _pid(processes, name)
        yield name, "trains" if pid else "has ended", "", pid, f"{near}/{name}.log"


def _role(settings: Settings, name: str, driver: str | None) -> str:
    if name == driver:
        return "drives"
    return "gate" if replicas.serves(settings, name) else "starts, or waits for a driver"


def _ports(settings: Settings, name: str) -> str:
    ports = settings.replica_ports(name).items()
    return ", ".join(f"{port} {setting}" for setting, port in ports)


def _pid(processes: Processes, name: str) -> str:
    found = processes.find(name)
    return str(found.pid) if found is not None and found.is_alive else ""


def _aligned(rows: Sequence[Row]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield line.rstrip()


def _hints(
    folder: Path, settings: Settings, processes: Processes, driver: str | None
) -> Iterator[str]:
    if driver is None:
        yield f"No replica drives now; one will within seconds: `{_make(folder)} cluster-status`."
        return
    state, program = _near(folder / driver), _near(Path(sys.executable).with_name("fedloom"))
    try:
        control = Control(folder / driver)
        link = control.post("login-links", body={"scope": "admin"})["url"]
        committed = control.get("runs", settings.run)["rounds_committed"] if settings.run else 0
    except FedloomError as error:  # it has just ended
        yield f"{driver} does not answer: {error}"
        return
    yield f"console   {link}"
    yield f"          for two minutes, then `{program} console --dir {state}`; browsers know"
    yield f"          this name, but not the authority: {_near(folder)}/fl-1/pki/root.pem"
    yield f"rounds    {committed} of {settings.run} are committed"
    yield "objects   are in the memory of the S3 server: for trying out, not for work"
    gates = [name for name in REPLICAS if name != driver and processes.runs(name)]
    tries = [
        (f"{program} round list digits --dir {state}", "the rounds"),
        *_endings(folder, processes, driver, gates),
        (f"{_make(folder)} cluster-restart", "start replicas that have ended"),
        (f"{_make(folder)} cluster-stop", "end all, and remove the folder"),
    ]
    width = max(len(command) for command, _ in tries)
    for number, (command, meaning) in enumerate(tries):
        yield f"{'' if number else 'try':10}{command.ljust(width)}  # {meaning}"


def _endings(
    folder: Path, processes: Processes, driver: str, gates: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Commands that end a replica, if there is another one, with what they show."""
    show = f"{_make(folder)} cluster-status"
    if gates:
        kill = f"kill -9 {_pid(processes, driver)}; sleep 5; {show}"
        yield kill, f"kill {driver}, which drives: a gate takes over"
        yield f"kill {_pid(processes, gates[0])}; {show}", f"stop {gates[0]}: its devices move"


def _make(folder: Path) -> str:
    """make, with the folder if it is another one than usual."""
    near = _near(folder)
    return "make" if near == DEFAULT else f"make CLUSTER={near}"


def _near(path: Path) -> Path:
    """A path relative to the working folder, if inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
