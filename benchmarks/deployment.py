"""A real server and enrolled clients for benchmarks, and what their processes cost.

The server runs in a process of its own through serve.py, which is `fedloom.server.app.run` with
stop-watches on what blocks. Certificates are real: they are issued by the server's own authority,
only without the enrolment's round trips, so that a thousand clients are made in seconds.
"""

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc
import numpy as np
from stopwatch import events_in

from fedloom.cli.connection.api_client import Control
from fedloom.client.config import template
from fedloom.client.state.store import ClientStore
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.trust import identity, tokens
from fedloom.server import config as server_config
from fedloom.server.ledger import Ledger
from fedloom.server.pki.authority import Authority

OUT = Path(__file__).resolve().parent.parent / "out"
TICKS = os.sysconf("SC_CLK_TCK")
READY_S = 60.0
CERTIFICATE_S = 86_400.0


class Deployment:
    """A server's state directory with clients enrolled, and the server's process.

    Args:
        directory: empty; everything goes there.
        clients: names to enrol.
        settings: of `ServerConfig`.
    """

    def __init__(self, directory, clients, **settings):
        self.directory = directory
        self.state = directory / "server"
        self.clients = {}
        self.events_file = directory / "events"
        self._log = (directory / "log").open("wb")
        self._server = None
        self._processes = []
        fleet, enrolment = free_port(), free_port()
        self.config = server_config.ServerConfig(
            fleet=f"127.0.0.1:{fleet}", enrolment=f"127.0.0.1:{enrolment}", **settings
        )
        self.state.mkdir()
        server_config.write(self.state, self.config)
        self._enrol(clients)

    def _enrol(self, clients):
        now = datetime.now(UTC)
        authority = Authority.create(self.state / "pki", self.config.federation, now)
        ledger = Ledger.in_directory(self.state)
        for name in clients:
            token = tokens.make_token(authority.root_pin)
            hashed = tokens.secret_hash(token.secret)
            ledger.add_token(token.id, hashed, name, time.time() + 600)
            key = identity.generate_key()
            chain, peer = authority.issue_client(
                identity.build_csr(key), name, CERTIFICATE_S, datetime.now(UTC)
            )
            ledger.enrol(token.id, peer.serial, peer.not_after.timestamp())
            folder = self.directory / "clients" / name
            folder.mkdir(parents=True)
            store = ClientStore(folder / "client-state")
            store.save_identity(identity.key_to_pem(key), chain, authority.root_pem)
            given = {"server": self.config.fleet, "state_dir": "client-state", "reconnect_s": 0.5}
            (folder / "client.toml").write_text(template(given))
            self.clients[name] = folder / "client.toml"
        ledger.close()
        authority.ensure_server_certificate(self.config.names, now)

    @property
    def pid(self):
        return self._server.pid

    def start(self, script="serve.py"):
        self._server = self.launch(script, str(self.events_file))

    def launch(self, script, *arguments):
        """Start a script beside this one as `SCRIPT STATE_DIR READY_FILE ...`, and wait for it."""
        ready = self.directory / f"{script}.ready"
        ready.unlink(missing_ok=True)
        path = str(Path(__file__).with_name(script))
        command = [sys.executable, path, str(self.state), str(ready), *arguments]
        process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        deadline = time.monotonic() + READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{script} does not start:\n{self.log()}")
            time.sleep(0.02)
        return process

    def stop(self):
        """End what was launched, the latest first."""
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self):
        """The end of what the launched processes said."""
        return (self.directory / "log").read_text()[-3000:]

    def submit(self, params, spec):
        """Start a run from these parameters; returns its id."""
        path = self.directory / "initial.safetensors"
        write_file(path, params)
        with path.open("rb") as file:
            stored = Control(self.state).upload("models", file=file, size_bytes=path.stat().st_size)
        path.unlink()
        run = Control(self.state).post("runs", body={"spec": spec, "model": stored["digest"]})
        return run["id"]

    def status(self, run):
        return Control(self.state).get("runs", run)

    def wait_online(self, num_clients):
        """Wait until so many clients attend."""
        deadline = time.monotonic() + READY_S
        while Control(self.state).get("server")["clients_online"] < num_clients:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Expected {num_clients} clients online:\n{self.log()}")
            time.sleep(0.05)

    def until(self, run, state="finished", timeout_s=600.0, every_s=0.2):
        """Wait for a run's end; returns its row. Each question costs the server some 20 ms."""
        deadline = time.monotonic() + timeout_s
        while (row := self.status(run))["state"] != state:
            if row["state"] != "running" or time.monotonic() > deadline:
                raise RuntimeError(f"run {run} is {row['state']}, not {state}:\n{self.log()}")
            time.sleep(every_s)
        return row

    def events(self):
        """What the server's stop-watches saw."""
        return events_in(self.events_file)

    def rounds(self, run):
        """The ledger's rows of a run's committed rounds."""
        ledger = Ledger.in_directory(self.state)
        try:
            return [r for r in ledger.list_rounds(run) if r.state == "committed"]
        finally:
            ledger.close()


@contextmanager
def deployed(clients, script="serve.py", **settings):
    """A running server, gone at the end with all its files; `script` is beside this one."""
    with tempfile.TemporaryDirectory(prefix="fedloom-") as temporary:
        deployment = Deployment(Path(temporary), clients, **settings)
        try:
            deployment.start(script)
            yield deployment
        finally:
            deployment.stop()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def model(num_values):
    """A model of three tensors, as a plain network has: two matrices and a vector."""
    rng = np.random.default_rng(0)
    width = max(1, int((num_values // 2) ** 0.5))
    shapes = {"a": (width, width), "b": (width,), "c": (num_values - width * width - width,)}
    return {
        name: 0.01 * rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }


# ---- processes ---------------------------------------------------------------------------------


def cpu_s(pid):
    """Processor seconds that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid):
    """Resident bytes now and at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return 1024 * int(kib["VmRSS"]), 1024 * int(kib["VmHWM"])


# ---- reports -----------------------------------------------------------------------------------


def machine():
    """What the figures were measured on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "numpy": np.__version__,
    }


def report(name, columns, rows, out=OUT, **more):
    """Print a table and write it, with the machine, to out/NAME.json."""
    texts = [[*map(str, columns)], *[[_text(value) for value in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for text in texts:
        cells = [t.rjust(w) for t, w in zip(text[1:], widths[1:], strict=True)]
        print("  ".join([text[0].ljust(widths[0]), *cells]).rstrip())
    out.mkdir(exist_ok=True)
    found = {"machine": machine(), "rows": [dict(zip(columns, r, strict=True)) for r in rows]}
    (out / f"{name}.json").write_text(json.dumps({**found, **more}, indent=2) + "\n")


def _text(value):
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)
