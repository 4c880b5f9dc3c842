"""Servers, sites and devices as processes of their own, on loopback with their certificates."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedloom.cli.connection.api_client import Control
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.server import config as server_config
from fedloom.server.ledger import Ledger
from fedloom.server.pki.authority import Authority
from fedloom.server.storage.model_store import ModelStore
from support.patience import PATIENCE_S
from support.ports import steady_port

RUN_SEED = 11


def wait_until(holds, what):
    """Wait for a condition; its last value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)
    return found


def write_model(path, size):
    """Write an initial model of about so many values."""
    rng = np.random.default_rng(3)
    arrays = {"w": rng.normal(0, 1, (size,)), "b": rng.normal(0, 1, (3, 5))}
    write_file(path, {name: array.astype(np.float32) for name, array in arrays.items()})


class ServerProcess:
    """A server as a process of the command line.

    Args:
        directory: for its state, its log and the settings of its clients.
        name: of its folder.
        settings: of the server, beside its addresses.

    Attributes:
        constants: of the product, by dotted name, that have another value in this process.
        sources: PYTHONPATH of other sources of fedloom, with which it runs; empty for this one's.
        environment: variables of the process, beside those of this one.
    """

    constants: Mapping[str, float] = MappingProxyType({})
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory, name, **settings):
        self.name, self.state = name, directory / name
        self.upstream = None
        self.sources = ""
        self.state.mkdir()
        self._ready, self._log = directory / f"{name}.ready", directory / f"{name}.log"
        self.settings = settings = server_config.ServerConfig(
            fleet=f"127.0.0.1:{steady_port()}",
            enrolment=f"127.0.0.1:{steady_port()}",
            **{"console": "", **settings},
        )
        self.enrolment = settings.enrolment
        server_config.write(self.state, settings)
        Authority.create(self.state / "pki", settings.federation, datetime.now(UTC))
        self.process = None

    def start(self, kill=""):
        """Start it, to be killed at a crash point if one is named; return when it listens."""
        self.launch(kill)
        wait_until(self._listens, f"{self.name} listens: {self.log()}")
        return self

    def launch(self, kill):
        """Start it, to be killed at a crash point, perhaps before it listens."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, *self.program, "server", "run"]
        command += ["--dir", str(self.state), "--ready", str(self._ready)]
        command += ["--upstream", str(self.upstream)] if self.upstream else []
        with self._log.open("a") as log:
            environment = {**os.environ, **self.environment, "FEDLOOM_KILL": kill}
            if self.sources:
                environment["PYTHONPATH"] = self.sources
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def program(self):
        if not self.constants:
            return ["-m", "fedloom.cli.main"]
        return [str(Path(__file__).with_name("other_constants.py")), json.dumps({**self.constants})]

    def _listens(self):
        assert self.process.poll() is None, self.log()
        return self._ready.exists()

    def log(self):
        return self._log.read_text() if self._log.exists() else ""

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)

    def wait_for_kill(self):
        """Wait until it has died at its crash point."""
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL, self.log()

    @property
    def control(self):
        return Control(self.state)

    def enrol(self, client, *, devices=0):
        """The settings of a new client; of a site with `devices`."""
        body = {"client": client, "ttl_s": 600.0, "devices": devices}
        token = self.control.post("tokens", body=body)["token"]
        config = self.state.parent / f"clients-of-{self.name}" / client / "client.toml"
        config.parent.mkdir(parents=True)
        asyncio.run(enrol(self.enrolment, token, config))
        text = config.read_text().replace("# reconnect_s = 60.0", "reconnect_s = 0.3")
        config.write_text(text)
        return config

    def online(self):
        return self.control.get("server")["clients_online"]

    def ledger(self, call):
        """What a call of the ledger returns."""
        ledger = Ledger.in_directory(self.state, self.settings.database)
        try:
            return call(ledger)
        finally:
            ledger.close()

    def rounds(self, run):
        return self.ledger(lambda ledger: ledger.list_rounds(run))

    def ended(self, run):
        """The row of a run that has ended."""

        def look():
            row = self.ledger(lambda ledger: ledger.run(run))
            assert row.state in ("running", "finished"), f"{row.reason}\n{self.log()}"
            return row if row.state == "finished" else None

        return wait_until(look, f"{run} ends at {self.name}")

    def upload(self, model):
        """Store a model; its digest."""
        with Path(model).open("rb") as file:
            stored = self.control.upload("models", file=file, size_bytes=model.stat().st_size)
        return stored["digest"]

    def submit(self, spec, model):
        """Submit a run; its id."""
        body = {"spec": spec, "model": self.upload(model)}
        return self.control.post("runs", body=body)["id"]

    def model(self, digest):
        """The bytes of a model."""
        return ModelStore(self.state / "models").path(digest).read_bytes()

    def params(self, digest):
        return read_params(ModelStore(self.state / "models").path(digest))


class Cluster:
    """A parent with sites, or a server without; ended by `close`.

    Args:
        directory: for all of their files.
        script: of their devices.
    """

    def __init__(self, directory, script="site_devices.py"):
        self.directory, self.script = directory, script
        self.servers, self.devices = {}, []

    def server(self, name, **settings):
        self.servers[name] = ServerProcess(self.directory, name, **settings)
        return self.servers[name]

    def site(self, parent, name, devices, *, kill="", names=False, **settings):
        """A running site of a parent, registered for so many devices; they are not started."""
        made = self.server(name, name_devices=names, **settings)
        made.upstream = parent.enrol(name, devices=devices)
        return made.start(kill)

    def start_devices(self, server, names, site="-"):
        """Enrol and start devices in one process; return when they are connected."""
        self.run_devices(server, self.enrol(server, names), site)
        wait_until(lambda: server.online() >= len(names), f"devices of {server.name} attend")

    def enrol(self, server, names):
        """The settings of new devices."""
        return [str(server.enrol(name)) for name in names]

    def run_devices(self, server, configs, site="-", stuck=0, pause_s=0.0):
        """Start devices in one process, which train for an hour in one round; the process.

        In each other round they train for `pause_s`.
        """
        script = str(Path(__file__).with_name(self.script))
        command = [sys.executable, script, str(RUN_SEED), site, *configs]
        with (self.directory / f"devices-of-{server.name}.log").open("w") as log:
            own = {"FEDLOOM_TEST_STUCK": str(stuck), "FEDLOOM_TEST_PAUSE": str(pause_s)}
            variables = {**os.environ, **own}
            self.devices.append(subprocess.Popen(command, stdout=log, stderr=log, env=variables))
        return self.devices[-1]

    def close(self):
        for process in self.devices:
            process.kill()
            process.wait()
        for server in self.servers.values():
            server.stop()
