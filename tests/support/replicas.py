"""A pair of servers behind haproxy, over one PostgreSQL and one object store."""

import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.ports import steady_port
from support.site_servers import ServerProcess, wait_until

CONFIG = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
PORTS = {"fleet": 7443, "enrolment": 7444}


class Replica(ServerProcess):
    """One server of a pair; the second has the first one's settings and master key alone."""

    def __init__(self, directory, name, **settings):
        self.door_port = 0
        self.health = f"127.0.0.1:{steady_port()}"
        super().__init__(directory, name, replicated=True, health=self.health, **settings)

    @property
    def drives(self):
        try:
            with urllib.request.urlopen(f"http://{self.health}/ready", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def enrol(self, client, *, devices=0):
        """The settings of a new client, which connects through the proxy."""
        config = super().enrol(client, devices=devices)
        own = self.settings.fleet.rpartition(":")[2]
        text = config.read_text()
        assert own in text
        config.write_text(text.replace(own, str(self.door_port)))
        return config

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        if how == signal.SIGKILL:
            self.process.wait(PATIENCE_S)

    def continued(self):
        """Continue a stopped server; its exit status."""
        self.process.send_signal(signal.SIGCONT)
        return self.process.wait(PATIENCE_S)


class Pair:
    """Two replicas, whose devices connect through haproxy; ended by `close`.

    Args:
        directory: for the states, logs and settings of clients.
        database: URL.
        store: URL.
        kill: crash point at which the first replica, which drives, is killed.
    """

    def __init__(self, directory, database, store, kill=""):
        if shutil.which("haproxy") is None:
            pytest.skip("haproxy is not installed")
        self.directory = directory
        settings = {"database": database, "store": store}
        self.first = Replica(directory, "first", **settings)
        self.first.start(kill)
        self.second = Replica(directory, "second", **settings)
        shutil.rmtree(self.second.state / "pki")
        shutil.copy(self.first.state / "master.key", self.second.state)
        self.second.launch("")
        self.door = self._proxy()
        for each in (self.first, self.second):
            each.enrolment = f"127.0.0.1:{self.ports['enrolment']}"
            each.door_port = self.ports["fleet"]

    def _proxy(self):
        """Start haproxy with the file of `deploy/`, but for the addresses and the console."""
        text = CONFIG.read_text().partition("listen console")[0]
        text = text.replace("maxconn 20000", "maxconn 1000")
        self.ports = {name: steady_port() for name in PORTS}
        for name, port in PORTS.items():
            text = text.replace(f"bind :{port}", f"bind 127.0.0.1:{self.ports[name]}")
            for host, each in (("fl-1", self.first), ("fl-2", self.second)):
                check = each.health.rpartition(":")[2]
                own = f"{getattr(each.settings, name)} check port {check}"
                text = text.replace(f"{host}.example.org:{port}", own)
        path = self.directory / "haproxy.cfg"
        path.write_text(text)
        with (self.directory / "haproxy.log").open("w") as log:
            return subprocess.Popen(["haproxy", "-f", path], stdout=log, stderr=log)

    @property
    def driver(self):
        """The replica that drives."""
        return wait_until(self._driver, f"a replica drives: {self.first.log()}{self.second.log()}")

    def _driver(self):
        return next((each for each in (self.first, self.second) if each.drives), None)

    def other(self, replica):
        return self.second if replica is self.first else self.first

    def close(self):
        for each in (self.first, self.second):
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGCONT)
            each.stop()
        self.door.kill()
        self.door.wait()
