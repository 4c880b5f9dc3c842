"""The three servers of a cluster: their state folders, and whether they drive or serve as gates."""

import shutil
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster import haproxy, object_store, postgresql
from cluster.processes import Processes
from cluster.settings import REPLICAS, Settings
from fedloom.server import config
from fedloom.server.commands import create as create_server

CLI = (sys.executable, "-m", "fedloom.cli.main")


def create(folder: Path, settings: Settings) -> dict[str, config.ServerConfig]:
    """Make the first replica's state folder, and settings of all of them.

    The others get what docs/replicas.md says: settings, and the first one's master.key once it
    is there.
    """
    made = {}
    for name in REPLICAS:
        addresses: dict[str, Any] = {
            setting: f"127.0.0.1:{port}" for setting, port in settings.replica_ports(name).items()
        }
        state = folder / name
        if name == REPLICAS[0]:
            public = f"{haproxy.NAME}:{settings.port}"
            first = create_server(state, "cluster", (), public).settings
        else:
            state.mkdir(mode=0o700)
        made[name] = replace(
            first,
            **addresses,
            database=postgresql.url(settings.database_port),
            store=object_store.url(object_store.endpoint(settings.store_port), "cluster"),
            replicated=True,
            gates=True,
        )
        config.write(state, made[name])
    return made


def share_key(folder: Path) -> None:
    """Copy the first replica's master.key to the others."""
    first, *others = REPLICAS
    for name in others:
        shutil.copy(folder / first / "master.key", folder / name)


def start(processes: Processes, folder: Path, name: str) -> None:
    """Start a replica."""
    command = [*CLI, "server", "run", "--dir", str(folder / name)]
    processes.start(name, command, object_store.CREDENTIALS)


def drives(settings: Settings, name: str) -> bool:
    """Whether a replica drives."""
    return _answers(settings, name, "ready")


def serves(settings: Settings, name: str) -> bool:
    """Whether a replica serves devices, as the driver or as a gate."""
    return _answers(settings, name, "fleet")


def driver(settings: Settings) -> str | None:
    """The name of the replica that drives; None while none does."""
    return next((name for name in REPLICAS if drives(settings, name)), None)


def _answers(settings: Settings, name: str, path: str) -> bool:
    port = settings.replica_ports(name)["health"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=1.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
