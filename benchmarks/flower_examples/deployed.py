"""A server and agents of this project as processes, by their public commands, for run.py."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

CLI = (sys.executable, "-m", "fedloom.cli.main")
START_S = 60


class Failed(Exception):  # noqa: N818
    """A command failed, with its message."""


class Deployment:
    """A server in `folder/server` and agents in `folder/NAME`.

    Args:
        folder: for all of it.
        environment: of every process.
        apps: folders of Flower apps by the name by which runs select them.
    """

    def __init__(self, folder, environment, apps):
        self.folder, self.environment = folder, environment
        self.server = folder / "server"
        self.running = []
        self.call(
            "server", "init", "--dir", self.server,
            "--fleet", "127.0.0.1:0", "--enrolment", "127.0.0.1:0",
        )  # fmt: skip
        lines = [f"{json.dumps(name)} = {json.dumps(str(path))}" for name, path in apps.items()]
        with (self.server / "server.toml").open("a") as file:
            file.write("\n".join(["", "[flower_apps]", *lines, ""]))
        ready = folder / "ready"
        self._start("server", folder, "server", "run", "--dir", self.server, "--ready", ready)
        self.wait(lambda: ready.exists() and ready.read_text().split(), START_S)
        self.enrolment = f"127.0.0.1:{ready.read_text().split()[1]}"

    def call(self, *words):
        ended = subprocess.run(
            [*CLI, *map(str, words), "--json"], env=self.environment, cwd=self.folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ended.returncode:
            raise Failed(message_of(ended.stdout) or message_of(ended.stderr) or ended.stderr)
        return json.loads(ended.stdout)

    def _start(self, name, place, *words):
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen(
            [*CLI, *map(str, words)], env=self.environment, cwd=place,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        self.running.append((name, process))

    def attend(self, name, place, app, config):
        """Start an agent of this name in a working directory."""
        home = self.folder / f"home-{name}"
        made = self.call("token", "create", "--client", name, "--dir", self.server)
        token = made["tokens"][0]["token"]
        self.call("client", "enroll", "--server", self.enrolment, "--token", token, "--dir", home)
        path = home / "client.toml"
        kept = [line for line in path.read_text().splitlines() if line != "[flower]"]
        node = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
        path.write_text("\n".join([*kept, "[flower]", *node, ""]))
        self._start(name, place, "client", "run", "--flower", app, "--config", path)

    def submit(self, name, config):
        """Submit a run of an app; returns its id."""
        path = self.folder / "run.toml"
        values = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in config.items()]
        path.write_text("\n".join([f"name = {json.dumps(name)}", "[config]", *values, ""]))
        return self.call("run", "submit", path, "--flower-server", name, "--dir", self.server)["id"]

    def ended(self, run, limit_s):
        """Wait for the end of a run; returns its status."""

        def over():
            status = self.call("run", "status", run, "--all", "--dir", self.server)
            return status if status["state"] != "running" else None

        return self.wait(over, limit_s)

    def wait(self, found, limit_s):
        end = time.monotonic() + limit_s
        while not (value := found()):
            for name, process in self.running:
                if process.poll() is not None:
                    log = self.folder / f"{name}.log"
                    raise Failed(f"{name} ended with {process.returncode}: {last(log)}")
            if time.monotonic() > end:
                raise Failed(f"no end after {limit_s} s")
            time.sleep(0.3)
        return value

    def stop(self):
        for _, process in self.running:
            process.terminate()
        for _, process in self.running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def deployed(folder, environment, apps):
    """A deployment that ends with the block."""
    deployment = None
    try:
        deployment = Deployment(folder, environment, apps)
        yield deployment
    finally:
        if deployment is not None:
            deployment.stop()


def message_of(output):
    """The message of a failed command's document; None if it is none."""
    try:
        return json.loads(output)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None


def last(log):
    """The last line of a log."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no output"
