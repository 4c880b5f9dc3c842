"""Start a cluster, in the order in which its parts need each other."""

import shutil
from dataclasses import replace
from pathlib import Path

from cluster import devices, haproxy, object_store, postgresql, replicas, view
from cluster.prerequisites import check, check_enterable
from cluster.processes import Processes
from cluster.settings import REPLICAS, Settings
from cluster.stopping import STARTER, stop_all
from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UsageError


def start(folder: Path, settings: Settings) -> None:
    """Start a cluster, and show it once rounds commit.

    A command that fails or is interrupted ends what it started, and keeps the logs.

    Raises:
        FedloomError: something is missing, taken, or does not start.
    """
    check(folder, settings)
    folder.mkdir(parents=True)
    settings.write(folder)
    processes = Processes(folder)
    processes.create()
    try:
        check_enterable(folder)
    except UsageError:
        shutil.rmtree(folder)
        raise
    processes.record_this(STARTER)
    try:
        _start_all(processes, folder, settings)
    except BaseException:
        processes.forget(STARTER)
        print(f"Ending what was started; the logs stay in {processes.logs}.", flush=True)
        stop_all(processes)
        raise
    processes.forget(STARTER)
    view.show(folder)


def restart(folder: Path) -> None:
    """Start the replicas that have ended, as a supervisor would."""
    settings, processes = Settings.read(folder), Processes(folder)
    ended = [name for name in REPLICAS if not processes.runs(name)]
    for name in ended:
        _say(f"{name}: starts again")
        replicas.start(processes, folder, name)
    processes.wait(
        lambda: all(replicas.serves(settings, name) for name in ended), "they serve devices", ended
    )
    view.show(folder)


def _start_all(processes: Processes, folder: Path, settings: Settings) -> None:
    _start_storage(processes, folder, settings)
    driver, *_ = REPLICAS
    made = replicas.create(folder, settings)
    _say(f"{driver}: a server with the authority, which drives")
    replicas.start(processes, folder, driver)
    processes.wait(lambda: replicas.drives(settings, driver), f"{driver} drives", [driver])
    replicas.share_key(folder)
    _start_gates(processes, folder, settings)
    _say("haproxy: one port for all, by deploy/haproxy/haproxy.cfg")
    configuration, program = folder / "haproxy.cfg", haproxy.program()
    configuration.write_text(haproxy.configured(settings.port, made.values()))
    assert program is not None
    processes.start("haproxy", [program, "-f", str(configuration)])
    _say(f"{settings.num_devices} devices: enrolled, and started")
    devices.start(processes, folder, settings, driver)
    control, named = Control(folder / driver), devices.names(settings)
    processes.wait(
        lambda: control.get("server")["clients_online"] == settings.num_devices,
        "all devices are connected", [driver, "haproxy", *named],
    )  # fmt: skip
    run = devices.submit(folder, settings, driver)
    replace(settings, run=run).write(folder)
    _say(f"{run}: a run, which trains")
    processes.wait(
        lambda: control.get("runs", run)["rounds_committed"] >= 2,
        f"{run} commits rounds",
        [driver, *named],
    )


def _start_storage(processes: Processes, folder: Path, settings: Settings) -> None:
    _say("PostgreSQL: the ledger")
    data = folder / "postgresql"
    postgresql.create(data)
    processes.start("postgresql", postgresql.command(data, settings.database_port))
    processes.wait(
        lambda: postgresql.answers(settings.database_port), "PostgreSQL answers", ["postgresql"]
    )
    _say("an S3 server: models and updates, in memory alone: for trying out")
    processes.start("s3", object_store.command(settings.store_port))
    processes.wait(lambda: _has_bucket(settings.store_port), "the S3 server answers", ["s3"])


def _start_gates(processes: Processes, folder: Path, settings: Settings) -> None:
    gates = REPLICAS[1:]
    _say(f"{', '.join(gates)}: servers with its settings and its master.key, which serve devices")
    for name in gates:
        replicas.start(processes, folder, name)
    processes.wait(
        lambda: all(replicas.serves(settings, name) for name in gates), "gates serve devices", gates
    )


def _has_bucket(port: int) -> bool:
    try:
        object_store.request(port, "PUT", object_store.BUCKET)
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    print(f"starting {text}", flush=True)
