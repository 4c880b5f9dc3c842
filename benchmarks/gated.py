"""Replicas with gates for benchmarks: PostgreSQL, an object store, servers and enrolled clients.

All are processes on loopback, without a proxy: clients connect to the server that they are given.
"""

import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from fedloom.client.config import template
from fedloom.client.state.store import ClientStore
from fedloom.protocol.trust import identity
from fedloom.server.ledger.tables import certificates, clients
from fedloom.server.pki.authority import Authority
from support.object_store import CREDENTIALS, S3Server
from support.ports import steady_port
from support.postgresql import PostgreSQL
from support.site_servers import ServerProcess

READY_S = 180.0
CERTIFICATE_S = 7 * 86_400.0


class Gated:
    """A server that drives, and gates; a context manager.

    Args:
        num_gates: beside the driver.
        sources: PYTHONPATH of other sources of fedloom, with which they run; empty for this one's.
        settings: of each server.

    Attributes:
        driver: the server that drives.
        gates: the others.
        folder: of all files.
        database: the PostgreSQL server.
    """

    def __init__(self, num_gates, sources="", **settings):
        os.environ |= CREDENTIALS
        self._num_gates, self._sources, self._settings = num_gates, sources, settings
        self._stack = ExitStack()
        self.gates = []

    def __enter__(self):
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def _start(self):
        temporary = tempfile.TemporaryDirectory(prefix="fedloom-gated-")
        self.folder = Path(self._stack.enter_context(temporary))
        self.database = PostgreSQL()
        self._stack.callback(self.database.close)
        self.s3 = S3Server(self.folder / "s3.log")
        self._stack.callback(self.s3.close)
        self.driver = self._server("driver")
        self.driver.start()
        for number in range(self._num_gates):
            gate = self._server(f"gate{number}")
            shutil.rmtree(gate.state / "pki")
            shutil.copy(self.driver.state / "master.key", gate.state)
            gate.launch("")
            self.gates.append(gate)
        for gate in self.gates:
            wait_for(lambda gate=gate: "serves devices" in gate.log(), gate.log)

    def _server(self, name):
        made = ServerProcess(
            self.folder, name, database=self.database.url(), store=self.s3.url("gated"),
            replicated=True, gates=True, health=f"127.0.0.1:{steady_port()}", **self._settings,
        )  # fmt: skip
        made.sources = self._sources
        self._stack.callback(made.stop)
        return made

    def __exit__(self, *_):
        self._stack.close()

    def enrol(self, names, **more):
        """Enrol clients as an enrolment does, without its round trips; settings by name.

        Args:
            names: of the clients.
            more: settings of each client.
        """
        authority = Authority.load(self.driver.state / "pki")
        now, made, rows = datetime.now(UTC), {}, []
        for name in names:
            key = identity.generate_key()
            chain, peer = authority.issue_client(
                identity.build_csr(key), name, CERTIFICATE_S, datetime.now(UTC)
            )
            folder = self.folder / "clients" / name
            folder.mkdir(parents=True)
            store = ClientStore(folder / "client-state")
            store.save_identity(identity.key_to_pem(key), chain, authority.root_pem)
            given = {"server": self.driver.settings.fleet, "state_dir": "client-state", **more}
            made[name] = folder / "client.toml"
            made[name].write_text(template(given))
            rows.append({"serial": peer.serial, "not_after": peer.not_after.timestamp()})
        engine = sa.create_engine(self.database.url())
        with engine.begin() as connection:
            known = {"status": "active", "enrolled_at": now.timestamp(), "study": "", "devices": 0}
            connection.execute(clients.insert(), [{"name": name, **known} for name in names])
            its = [
                {"client": name, "issued_at": now.timestamp(), **row}
                for name, row in zip(names, rows, strict=True)
            ]
            connection.execute(certificates.insert(), its)
        engine.dispose()
        return made


def wait_for(holds, log):
    """Wait until a condition holds."""
    deadline = time.monotonic() + READY_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain:\n{log()[-3000:]}")
        time.sleep(0.1)
