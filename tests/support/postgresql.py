"""A PostgreSQL server of one's own, as processes on loopback."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from support.patience import PATIENCE_S
from support.ports import steady_port

USER = "postgres"
"""Whom the server runs as where this process is root's: it refuses root."""


def programs():
    """The folder of PostgreSQL's programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return None if path is None else Path(path).parent


class PostgreSQL:
    """A server with an empty database; ended by `close`."""

    def __init__(self):
        where = programs()
        if where is None:
            pytest.skip("PostgreSQL is not installed")
        self._bin, self.port = where, steady_port()
        # Not in pytest's folders, which USER may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="fedloom-postgresql-"))
        self._data, self._log = self._folder / "data", self._folder / "log"
        self._as = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(self._folder, USER, USER)
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", USER, "--no-sync")
        self.start()

    def url(self, name="postgres"):
        """The setting `database`."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{name}"

    def create(self, name):
        """The setting `database` for a new database."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def start(self):
        """Start it; return when it answers."""
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "max_connections": 100}
        settings = [f"-c{name}={value}" for name, value in options.items()]
        command = [self._bin / "postgres", "-D", self._data, "-k", self._data, *settings]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        deadline = time.monotonic() + PATIENCE_S
        while self._answers() != 0:
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def _answers(self):
        command = [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode

    def _run(self, program, *arguments):
        done = subprocess.run(
            [self._bin / program, *arguments], capture_output=True, text=True, check=False,
            **self._as,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def execute(self, statement, name="postgres"):
        """Run a statement in a database; its rows."""
        url = self.url(name).replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def stop(self, how=signal.SIGINT):
        """End it: SIGINT cuts the connections, SIGQUIT is as a crash."""
        self._process.send_signal(how)
        self._process.wait(PATIENCE_S)

    def close(self):
        if self._process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder)
