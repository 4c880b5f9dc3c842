"""A server as a process that a test kills, for devices of masked rounds.

It has the parts of `support.federation.Federation` that `support.masked_devices.Device` uses.
"""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import grpc

from fedloom.protocol.crash_points import VARIABLE
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem
from fedloom.server import config
from fedloom.server.ledger import Ledger
from fedloom.server.pki.authority import Authority
from fedloom.server.planning.spec import parse
from support.federation import CHANNEL_OPTIONS, Identity
from support.patience import PATIENCE_S
from support.ports import steady_port
from support.storage import storage_of

RUN = "killed-1"
_SERVE = (
    "import sys; from pathlib import Path; from fedloom.server.app import run;"
    "run(Path(sys.argv[1]), ready=Path(sys.argv[2]))"
)


class KilledServer:
    """A server's folder, and the process that runs over it; `settings` beside its addresses."""

    def __init__(self, directory, **settings):
        self.directory = directory
        self.port = steady_port()
        self.settings = settings = config.ServerConfig(
            fleet=f"127.0.0.1:{self.port}", enrolment=f"127.0.0.1:{steady_port()}", **settings
        )
        config.write(directory, settings)
        self.authority = Authority.create(directory / "pki", settings.federation, datetime.now(UTC))
        self.kills = 0
        self._process = None

    def ledger(self):
        return Ledger.in_directory(self.directory, self.settings.database)

    def enrol(self, client):
        key = generate_key()
        chain, peer = self.authority.issue_client(build_csr(key), client, 3600.0, datetime.now(UTC))
        token, ledger = tokens.make_token(self.authority.root_pin), self.ledger()
        hashed = tokens.secret_hash(token.secret)
        ledger.add_token(token.id, hashed, client, time.time() + 600)
        ledger.enrol(token.id, peer.serial, peer.not_after.timestamp())
        ledger.close()
        return Identity(client, key_to_pem(key), chain)

    def submit(self, params, **settings):
        """Write a run into the ledger before the server starts, which begins it."""
        storage = storage_of(self.directory, self.settings)
        models, ledger = storage.models, storage.ledger
        write_file(self.directory / "initial.safetensors", params)
        digest = models.add(self.directory / "initial.safetensors")
        train = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}
        run = parse({"name": "killed", "rounds": 1, "evaluate": False, "train": train, **settings})
        ledger.add_run(
            {"id": RUN, "name": run.name, "spec": run.as_dict(), "state": "running", "reason": "",
             "model": digest},
            models.path(digest).stat().st_size,
        )  # fmt: skip
        storage.close()

    def channel(self, identity):
        credentials = grpc.ssl_channel_credentials(
            self.authority.root_pem, identity.key_pem, identity.chain_pem
        )
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, CHANNEL_OPTIONS)

    # ---- the process -------------------------------------------------------------------------

    def start(self, place=""):
        """Start the server; it kills itself at this place, such as `masking.stored:3`."""
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(self.directory), str(ready)],
                env={**os.environ, VARIABLE: place}, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert time.monotonic() < until, self._log()
            if self._process.poll() is not None:
                break  # killed as it started
            time.sleep(0.02)

    def look(self):
        """Start the server again if it has killed itself."""
        if self._process.poll() is not None:
            assert self._process.returncode == -signal.SIGKILL, self._log()
            self.kills += 1
            self.start()

    def end(self):
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)

    def _log(self):
        return (self.directory / "log").read_text()[-3000:]

    def result(self):
        """The run's row and its model."""
        ledger = self.ledger()
        row = ledger.run(RUN)
        ledger.close()
        path = self.directory / "models" / f"{row.model}.safetensors"
        return row, read_params(path) if path.exists() else None
