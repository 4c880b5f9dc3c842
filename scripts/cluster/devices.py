"""The devices of a cluster, and the run that they train."""

import asyncio
from pathlib import Path

from cluster import training
from cluster.processes import Processes
from cluster.replicas import CLI
from cluster.settings import Settings
from fedloom.cli.connection.api_client import Control
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.tensors.container import write_file

CODE = f"{Path(training.__file__).resolve()}:client"


def names(settings: Settings) -> list[str]:
    """Of the devices."""
    return [f"device-{number}" for number in range(1, settings.num_devices + 1)]


def start(processes: Processes, folder: Path, settings: Settings, driver: str) -> None:
    """Enrol devices at the replica that drives, and start them; they connect to haproxy.

    They do not enrol by haproxy, whose name for that, enroll.localhost, few machines resolve.
    """
    control, named = Control(folder / driver), names(settings)
    enrolment = f"127.0.0.1:{settings.replica_ports(driver)['enrolment']}"
    shards = training.write_shards(folder / "shards", named)
    for name in named:
        token = control.post("tokens", body={"client": name, "ttl_s": 600.0})["token"]
        file = folder / "devices" / name / "client.toml"
        file.parent.mkdir(parents=True)
        asyncio.run(enrol(enrolment, token, file))
        variables = {
            training.SHARD: str(shards[name]),
            # Short, as one watches.
            "FEDLOOM_RECONNECT_S": "2",
        }
        command = [*CLI, "client", "run", CODE, "--config", str(file)]
        processes.start(name, command, variables)


def submit(folder: Path, settings: Settings, driver: str) -> str:
    """Submit the run; its id."""
    control, path = Control(folder / driver), folder / "initial.safetensors"
    write_file(path, training.initial())
    with path.open("rb") as file:
        stored = control.upload("models", file=file, size_bytes=path.stat().st_size)
    body = {"spec": training.run(settings.num_devices), "model": stored["digest"]}
    run: str = control.post("runs", body=body)["id"]
    return run
