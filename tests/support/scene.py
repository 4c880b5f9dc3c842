"""A real server in one process and real clients in another, for tests with a browser."""

import asyncio
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedloom.cli.connection.api_client import Control
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.errors import FedloomError
from fedloom.protocol.tensors.container import write_file
from support.patience import PATIENCE_S
from support.ports import steady_port

HERE = Path(__file__).parent
CLI = (sys.executable, "-m", "fedloom.cli.main")

SPEC = {
    "name": "wards",
    "rounds": 12,
    "cohort": {"goal": 5, "quorum": 3, "deadline_s": 120.0},
    "train": {"epochs": 1, "batch_size": 32, "learning_rate": 0.25},
    "config": {"delay_s": 0.3},
}


def wait_for(condition, what, patience_s=PATIENCE_S):
    """Wait until a condition holds, and return its value."""
    until = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return found


def apart(work):
    """Run a coroutine in a separate thread: a browser uses this thread's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Scene:
    """A server and its clients.

    Args:
        folder: for their states.
        names: of the clients.
        prepare: puts something into the server's state directory before it starts.
    """

    def __init__(self, folder, names=("oak", "elm", "ash", "fir", "yew", "bay"), prepare=None):
        self._prepare = prepare
        self.folder = folder
        self.state = folder / "server"
        self.names = names
        self.port = steady_port()
        self.fleet, self.enrolment = steady_port(), steady_port()
        self.control = Control(self.state)
        self.processes = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self):
        """The console's URL."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        listen = ("--fleet", f"127.0.0.1:{self.fleet}")
        enrolment = ("--enrolment", f"127.0.0.1:{self.enrolment}")
        where = ("--dir", str(self.state))
        subprocess.run([*CLI, "server", "init", *where, *listen, *enrolment], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        settings = self.state / "server.toml"
        lines = [x for x in settings.read_text().splitlines() if not x.startswith("console =")]
        settings.write_text("\n".join([*lines, f'console = "127.0.0.1:{self.port}"', ""]))
        if self._prepare is not None:
            self._prepare(self.state)
        self.start_server()
        apart(self._enrol())
        if self.names:
            self.start_clients()
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _keep(self, name, *words):
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log)

    def start_server(self):
        """Start the server and wait until it answers."""
        self._keep("server", *CLI, "server", "run", "--dir", str(self.state))
        wait_for(self.answers, "the server does not answer")

    def answers(self):
        """The server's document about itself; None while it does not answer."""
        try:
            return self.control.get("server")
        except FedloomError:
            assert self.processes["server"].poll() is None, "the server has ended"
            return None

    def kill_server(self):
        """End the server with SIGKILL."""
        process = self.processes.pop("server")
        process.send_signal(signal.SIGKILL)
        process.wait()

    async def _enrol(self):
        for name in self.names:
            token = self.control.post("tokens", body={"client": name})["token"]
            path = self.folder / name / "client.toml"
            await enrol(f"127.0.0.1:{self.enrolment}", token, path)
            text = path.read_text()
            if "reconnect_s" not in text:
                path.write_text(text + "\nreconnect_s = 0.2\n")

    def start_clients(self, names=None):
        """Start the agents and wait until all attend."""
        names = self.names if names is None else names
        self._keep("clients", sys.executable, str(HERE / "crew.py"), str(self.folder), *names)
        wait_for(lambda: self.control.get("server")["clients_online"] >= len(names), "no clients")

    def stop_clients(self):
        """End the agents at once."""
        process = self.processes.pop("clients")
        process.kill()
        process.wait()

    def model(self):
        """Store an initial model; returns its digest."""
        path = self.folder / "initial.safetensors"
        write_file(path, {"w": np.zeros(24, np.float32), "b": np.zeros(4, np.float32)})
        with path.open("rb") as file:
            size = path.stat().st_size
            return self.control.upload("models", file=file, size_bytes=size)["digest"]

    def submit(self, **settings):
        """Start a run; returns its id."""
        spec = {**SPEC, **settings}
        return self.control.post("runs", body={"spec": spec, "model": self.model()})["id"]

    def run(self, run):
        """A run's row from the API."""
        return self.control.get("runs", run)

    def round(self, run, number):
        """A round from the API."""
        return self.control.get("runs", run, "rounds", str(number))

    def live(self, run):
        """The open round of a run; empty while there is none."""
        return (self.run(run)["live"] or {}).get("round") or {}

    def until_open(self, run):
        """Wait until a round of a run is open."""
        wait_for(lambda: self.live(run).get("state") == "reporting", "no open round")

    def until(self, run, committed, patience_s=PATIENCE_S):
        """Wait until so many rounds of a run are committed."""
        wait_for(lambda: self.run(run)["rounds_committed"] >= committed, "no rounds", patience_s)

    @contextmanager
    def stopped_server(self):
        """Kill the server; it is restarted after the block."""
        self.kill_server()
        yield
        self.start_server()
