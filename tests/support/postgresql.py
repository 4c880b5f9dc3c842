"""A PostgreSQL server of one's own, as processes on loopback."""

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from cluster import postgresql
from support.patience import PATIENCE_S
from support.ports import steady_port
from support.site_servers import wait_until

STANDBY = "standby"
"""The name of a standby at its primary."""


class PostgreSQL:
    """A server with an empty database; ended by `close`.

    Args:
        primary: whose standby it is; None for a server of its own.
    """

    def __init__(self, primary=None):
        if postgresql.programs() is None:
            pytest.skip("PostgreSQL is not installed")
        self.port = steady_port()
        # Not in pytest's folders, which the server's user may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="fedloom-postgresql-"))
        self._folder.chmod(0o711)
        self._data, self._log = self._folder / "data", self._folder / "log"
        if primary is None:
            postgresql.create(self._data)
        else:
            postgresql.copy(self._data, primary.port, STANDBY)
        self._process = None
        self.start()

    def url(self, name="postgres"):
        """The setting `database`."""
        return postgresql.url(self.port, name)

    def create(self, name):
        """The setting `database` for a new database."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def start(self):
        """Start it, if it does not run; return when it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("a") as log:
            command = postgresql.command(self._data, self.port)
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not postgresql.answers(self.port):
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def standby(self):
        """A synchronous standby: each commit waits for it."""
        made = PostgreSQL(self)
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        self.execute("SELECT pg_reload_conf()")
        synced = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self.execute(synced), "commits wait for the standby")
        return made

    def promote(self):
        """Let a standby become the primary."""
        postgresql.promote(self._data)

    def waiting(self):
        """The process ids of sessions whose commits wait for the standby."""
        found = self.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        return [pid for (pid,) in found]

    def execute(self, statement, name="postgres"):
        """Run a statement in a database; its rows."""
        url = self.url(name).replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def stop(self, how=signal.SIGINT):
        """End it, if it runs: SIGINT cuts the connections, SIGQUIT is as a crash."""
        self._process.send_signal(how)
        self._process.wait(PATIENCE_S)

    def close(self):
        if self._process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder)
