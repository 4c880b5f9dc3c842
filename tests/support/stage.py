"""A server and devices as processes, faults between them, and the expected model.

Certificates are issued by the server's own authority without the enrolment protocol. The judge
reads the members of each round from the ledger, checks that none counts twice, replays the rounds
by hand and compares bits: a lost, repeated or invented update changes them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedloom.cli.connection.api_client import Control
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import FedloomError
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.trust import identity, tokens
from fedloom.server import config as server_config
from fedloom.server.ledger import Ledger
from fedloom.server.pki.authority import Authority
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, Full, Partial, weight_units
from fedloom.strategies.exact.partial import TensorSpec
from support.crash_client import local_step
from support.patience import PATIENCE_S
from support.ports import steady_port

HERE = Path(__file__).parent
SERVE = (
    "import logging, sys; from pathlib import Path; from fedloom.server.app import run;"
    "logging.basicConfig(level=logging.INFO, format='%(created).3f %(message)s');"
    "run(Path(sys.argv[1]), ready=Path(sys.argv[2]))"
)
SPEC = {
    "name": "faults",
    "rounds": 2,
    "evaluate": False,
    "cohort": {"goal": 2, "quorum": 2, "deadline_s": 3600.0, "patience_s": 3600.0},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
}


@dataclass
class Device:
    """One client: its folder, the address it connects to, and its process, if it has one."""

    name: str
    folder: Path
    process: subprocess.Popen | None = None

    @property
    def config(self):
        return self.folder / "client.toml"

    @property
    def state(self):
        return self.folder / "client-state"

    def log(self):
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""


class Stage:
    """A server's process and those of its devices.

    Args:
        directory: empty; everything goes there.
        names: of the devices.
        host: that the server listens on.
        certificate_s: life of the devices' certificates.
        before: prefix of the server's command, such as `ip netns exec NAME`.
        settings: of `ServerConfig`.
    """

    def __init__(
        self,
        directory,
        names,
        /,
        *,
        host="127.0.0.1",
        certificate_s=86_400.0,
        before=(),
        **settings,
    ):
        self.directory = directory
        self.state = directory / "server"
        self.state.mkdir(parents=True, exist_ok=True)
        self.before = list(before)
        self.config = server_config.ServerConfig(
            fleet=f"{host}:{steady_port()}", enrolment=f"{host}:{steady_port()}", **settings
        )
        server_config.write(self.state, self.config)
        self.server = None
        self.devices = {}
        self._log = (directory / "server.log").open("ab")
        self._enrol(names, certificate_s)

    def _enrol(self, names, certificate_s):
        self.authority = Authority.create(
            self.state / "pki", self.config.federation, datetime.now(UTC)
        )
        self.signing = SigningKey.ensure(self.state / "signing", self.config.federation)
        self.enrol(names, certificate_s, datetime.now(UTC))

    def enrol(self, names, certificate_s, now):
        """Make devices known to the ledger, with certificates from a moment on."""
        ledger = Ledger.in_directory(self.state)
        for name in names:
            token = tokens.make_token(self.authority.root_pin)
            hashed = tokens.secret_hash(token.secret)
            ledger.add_token(token.id, hashed, name, time.time() + 600)
            key = identity.generate_key()
            chain, peer = self.authority.issue_client(
                identity.build_csr(key), name, certificate_s, now
            )
            ledger.enrol(token.id, peer.serial, peer.not_after.timestamp())
            device = Device(name, self.directory / name)
            device.folder.mkdir(exist_ok=True)
            ClientStore(device.state).save_identity(
                identity.key_to_pem(key), chain, self.authority.root_pem, self.signing.signer.public
            )
            self.devices[name] = device
            self.point(name, self.config.fleet)
        ledger.close()

    def point(self, name, address, **settings):
        """Write a device's client.toml."""
        values = {"server": address, "state_dir": "client-state", "reconnect_s": 0.5, **settings}
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.devices[name].config.write_text("\n".join(lines) + "\n")

    @property
    def port(self):
        return int(self.config.fleet.rpartition(":")[2])

    # ---- processes ---------------------------------------------------------------------------

    def __enter__(self):
        self.start_server()
        return self

    def __exit__(self, kind, *_):
        for name in self.devices:
            self.end(name)
        self.stop_server()
        self._log.close()
        if kind is not None:
            print(self.report())

    def start_server(self, **environment):
        """Start the server and wait until it listens."""
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        command = [*self.before, sys.executable, "-c", SERVE, str(self.state), str(ready)]
        self.server = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait(lambda: ready.exists() or self.server.poll() is not None, "the server to listen")
        assert self.server.poll() is None, self.report()

    def stop_server(self, number=signal.SIGTERM):
        """End the server: SIGTERM closes its connections."""
        _end(self.server, number)

    def start(self, name, *, before=(), script=HERE / "fault_client.py", **environment):
        """Start a device's process."""
        device = self.devices[name]
        with (device.folder / "log").open("ab") as log:
            device.process = subprocess.Popen(
                [*before, sys.executable, str(script), str(device.config)],
                env={**os.environ, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return device

    def end(self, name, number=signal.SIGTERM):
        """End a device's process."""
        if self.devices[name].process is not None:
            _end(self.devices[name].process, number)

    def died(self, name):
        """Wait until a device dies at its armed place by SIGKILL."""
        process = self.devices[name].process
        assert process.wait(PATIENCE_S) == -signal.SIGKILL, self.devices[name].log()[-2000:]

    # ---- runs --------------------------------------------------------------------------------

    def control(self):
        return Control(self.state)

    def online(self, count):
        """Wait until this many devices are connected."""
        wait(lambda: self.control().get("server")["clients_online"] == count, f"{count} online")

    def submit(self, params, **settings):
        """Start a run from these parameters; returns its id."""
        path = self.directory / "initial.safetensors"
        write_file(path, params)
        with path.open("rb") as file:
            stored = self.control().upload("models", file=file, size_bytes=path.stat().st_size)
        body = {"spec": {**SPEC, **settings}, "model": stored["digest"]}
        return self.control().post("runs", body=body)["id"]

    def row(self, run):
        return self.control().get("runs", run)

    def phase(self, run, name):
        """The phase of a device in the open round, or None."""
        live = self.row(run).get("live") or {}
        return (live.get("round") or {}).get("members", {}).get(name)

    def finished(self, run, patience_s=PATIENCE_S):
        """Wait until a run has finished."""
        wait(lambda: self.row(run)["state"] != "running", "the run to finish", patience_s)
        row = self.row(run)
        assert row["state"] == "finished", (row["state"], row.get("reason"))

    def rounds(self, run):
        """The ledger's committed rounds and who counted in each: [(number, [client, ...])]."""
        ledger = Ledger.in_directory(self.state)
        try:
            rows = [r for r in ledger.list_rounds(run) if r.state == "committed"]
            counts = {r.number: r.accepted for r in rows}
            clients = {n: [u.client for u in ledger.accepted(run, n)] for n in counts}
        finally:
            ledger.close()
        for number, count in counts.items():
            assert count == len(clients[number]) == len(set(clients[number])), clients
        return [(number, sorted(clients[number])) for number in sorted(clients)]

    def judge(self, run, initial, **settings):
        """Compare a finished run's model with the computed one; returns the members of each round.

        Raises:
            AssertionError: another model, or a client counts twice.
        """
        rounds = self.rounds(run)
        wanted = replayed(initial, parse({**SPEC, **settings}), rounds)
        got = read_params(self.state / "models" / f"{self.row(run)['model']}.safetensors")
        different = [name for name in wanted if got[name].tobytes() != wanted[name].tobytes()]
        assert not different, f"other bits in {different}, rounds {rounds}"
        return [clients for _, clients in rounds]

    def report(self):
        """The ends of all logs, for the message of a failure."""
        texts = [(self.directory / "server.log").read_text(errors="replace")[-3000:]]
        texts += [f"--- {d.name}\n{d.log()[-3000:]}" for d in self.devices.values()]
        return "\n".join(texts)


def replayed(initial, run, rounds):
    """The model after rounds with these clients, computed by hand."""
    specs = {(DELTA, n): TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in initial.items()}
    strategy = run.build_strategy()
    params, state = dict(initial), strategy.init(initial)
    for number, clients in rounds:
        partial = Partial(specs, run.exponent())
        for client in clients:
            seed = task_seed(run.seed, number, client)
            for name, value in local_step(params, seed).items():
                delta = np.subtract(value, params[name], dtype=np.float32)
                partial.add_array((DELTA, name), Full(), weight_units(1 + seed % 1000), delta)
            partial.count += 1
        params, state = strategy.finish(state, params, partial)
    return params


def model(size_bytes, seed=0):
    """A model of about this size, unique for its seed."""
    rng = np.random.default_rng(seed)
    rows = max(1, size_bytes // 4 // 1000)
    return {
        "weight": rng.standard_normal((rows, 1000), dtype=np.float32),
        "bias": rng.standard_normal(10, dtype=np.float32),
    }


def wait(condition, what, patience_s=PATIENCE_S):
    """Wait for a condition.

    Raises:
        AssertionError: it does not hold in time.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if condition():
                return
        except FedloomError:
            pass  # a server that starts or stops
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for {what}"
        time.sleep(0.02)


def _end(process, number):
    """End a process and its children: `faketime` runs a command as its child."""
    if process is not None and process.poll() is None:
        os.killpg(process.pid, number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
