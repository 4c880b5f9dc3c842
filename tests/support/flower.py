"""Flower's own rounds in this process, and the same app on a real server with real agents."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedloom.protocol.flower_messages import number_of
from fedloom.protocol.tensors.container import read_params
from support.patience import PATIENCE_S
from support.ports import steady_port

APPS = Path(__file__).parents[1] / "flower" / "apps"
CLI = (sys.executable, "-m", "fedloom.cli.main")


def import_app(folder, name):
    """A module of one of the apps."""
    if str(APPS / folder) not in sys.path:
        sys.path.insert(0, str(APPS / folder))
    return importlib.import_module(f"{folder}.{name}")


class Here(Grid):
    """Flower's grid with nodes in this process: the app is called for each message.

    Node `number` has the id of a deployed client `c{number}`.
    """

    def __init__(self, app, nodes, run_config):
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.contexts = {
            number_of(f"c{number}"): Context(
                run_id=1,
                node_id=number_of(f"c{number}"),
                node_config={"partition-id": number, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for number in range(nodes)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def get_nodes(self):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        del timeout
        return [self._answered(message) for message in messages]

    def _answered(self, message):
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001 - as Flower's nodes answer
            failed = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=f"{error}")
            return Message(failed, reply_to=message)


class Deployment:
    """A server and agents as processes, by the public commands.

    Args:
        directory: for all of it.
        folder: of the app, in which agents start.
    """

    def __init__(self, directory, folder):
        self.server = directory / "server"
        self.directory = directory
        self.folder = folder
        self.running = []
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self.environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def call(self, *words, check=True):
        done = subprocess.run(
            [*CLI, *map(str, words), "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def begin(self, *words, log):
        with (self.directory / log).open("w") as out:
            process = subprocess.Popen(
                [*CLI, *map(str, words)],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.running.append(process)
        return process

    def serve(self, settings="", *, steady=False):
        """Start a server, on fixed ports if requested."""
        fleet, enrolment = (steady_port(), steady_port()) if steady else (0, 0)
        self.call(
            *("server", "init", "--dir", self.server),
            *("--fleet", f"127.0.0.1:{fleet}", "--enrolment", f"127.0.0.1:{enrolment}"),
        )
        with (self.server / "server.toml").open("a") as file:
            file.write(f"\n{settings}")
        self.serve_again()

    def serve_again(self):
        number = len(list(self.directory.glob("server-*.log")))
        ready = self.directory / f"ready-{number}"
        words = ("server", "run", "--dir", self.server, "--ready", ready)
        self.process = self.begin(*words, log=f"server-{number}.log")
        ports = self.waited(lambda: ready.exists() and ready.read_text().split())
        self.enrolment = ports[1]

    def kill_server(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self.running.remove(self.process)

    def attend(self, app, number, of, policy=""):
        """One agent, by `fedloom client run --flower`, with a policy of its owner."""
        home = self.directory / f"client-{number}"
        token = self.call("token", "create", "--client", f"c{number}", "--dir", self.server)
        token = token["tokens"][0]["token"]
        server = f"127.0.0.1:{self.enrolment}"
        self.call("client", "enroll", "--server", server, "--token", token, "--dir", home)
        text = (home / "client.toml").read_text()
        node = f"partition-id = {number}\nnum-partitions = {of}\n"
        text = "\n".join(line for line in text.splitlines() if line != "[flower]")
        (home / "client.toml").write_text(f"{text}\n[flower]\n{node}")
        (home / "policy.toml").write_text(policy)
        return self.begin(
            "client", "run", "--flower", app, "--config", home / "client.toml",
            log=f"client-{number}.log",
        )  # fmt: skip

    def run(self, settings, model):
        """Submit a run and wait for its end; returns its status."""
        return self.ended(self.submit(settings, model))

    def submit(self, settings, model):
        """Submit a run; returns its id."""
        file = self.directory / "run.toml"
        file.write_text(settings)
        return self.call("run", "submit", file, "--model", model, "--dir", self.server)["id"]

    def status(self, run):
        return self.call("run", "status", run, "--all", "--dir", self.server)

    def ended(self, run):
        """Wait for a run's end; returns its status."""

        def over():
            status = self.status(run)
            return status if status["state"] not in ("running", "paused") else None

        return self.waited(over)

    def model(self):
        out = self.directory / "final.safetensors"
        self.call("model", "export", "--out", out, "--dir", self.server)
        return read_params(out)

    def logs(self):
        return "\n".join(f"== {p.name}\n{p.read_text()}" for p in self.directory.glob("*.log"))

    def waited(self, found):
        end = time.monotonic() + PATIENCE_S
        while not (value := found()):
            assert time.monotonic() < end, self.logs()
            assert all(p.poll() is None for p in self.running), self.logs()
            time.sleep(0.2)
        return value

    def stop(self):
        for process in self.running:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def deployed(directory, folder):
    """A deployment that ends with the block."""
    deployment = Deployment(directory, folder)
    try:
        yield deployment
    finally:
        deployment.stop()
