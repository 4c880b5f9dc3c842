"""A bridge, and stock `flower-supernode` processes beside a deployment."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509

from fedloom.protocol.trust.private_files import write_private
from support.flower import deployed
from support.ports import steady_port

SUPERNODE = Path(sys.executable).with_name("flower-supernode")


def make_key(path):
    """A SuperNode's key pair, as flwr's documentation makes it."""
    words = ("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", path)
    subprocess.run([*map(str, words)], check=True)
    return path


class Bridged:
    """A bridge to a deployment, and its SuperNodes.

    Args:
        here: the deployment; its server runs.
        app: folder of the app.
        settings: further lines of bridge.toml.
    """

    def __init__(self, here, app, settings=""):
        self.here, self.app = here, app
        self.folder = here.directory / "bridge"
        self.folder.mkdir()
        self.port = steady_port()
        self._certify()
        (self.folder / "bridge.toml").write_text(
            f'listen = "127.0.0.1:{self.port}"\ncertificate = "tls.pem"\nkey = "tls.key"\n'
            f'app = "{app}"\n{settings}'
        )
        self.supernodes = {}

    def _certify(self):
        """A certificate of the federation's authority, as the operator's own would be."""
        pem = (self.here.server / "pki" / "server.pem").read_bytes()
        write_private(self.folder / "tls.pem", pem)
        write_private(self.folder / "tls.key", pem)
        root = self.here.server / "pki" / "root.pem"
        self.root = self.folder / "root.pem"
        self.root.write_bytes(x509_pem(root))

    def key(self, name):
        """The key of a SuperNode, made on first use."""
        path = self.here.directory / f"{name}-key"
        return path if path.exists() else make_key(path)

    def enrol(self, name):
        """Enrol a SuperNode's key as a client; returns the key's file."""
        key = self.key(name)
        made = self.here.call("token", "create", "--client", name, "--dir", self.here.server)
        self.here.call(
            *("bridge", "enroll", "--server", f"127.0.0.1:{self.here.enrolment}"),
            *("--token", made["tokens"][0]["token"], "--key", f"{key}.pub", "--dir", self.folder),
        )
        return key

    def begin(self):
        """Start the bridge."""
        ready = self.here.directory / f"bridge-ready-{len(self.here.running)}"
        ready.unlink(missing_ok=True)
        words = ("bridge", "run", "--dir", self.folder, "--ready", ready)
        self.process = self.here.begin(*words, log=f"bridge-{len(self.here.running)}.log")
        self.here.waited(ready.exists)

    def kill(self):
        """Kill the bridge."""
        self.process.kill()
        self.process.wait()
        self.here.running.remove(self.process)

    def attend(self, name, number, of, key=None, more=""):
        """Start a stock SuperNode; `key` is None for one without."""
        home = self.here.directory / f"{name}-home"
        home.mkdir(exist_ok=True)
        environment = os.environ | {
            "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1", "PATH": f"{SUPERNODE.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        words = [
            SUPERNODE, "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", self.root,
            "--node-config", f"partition-id={number} num-partitions={of} {more}".strip(),
            "--port", steady_port(),
        ]  # fmt: skip
        if key is not None:
            words += ["--auth-supernode-private-key", key]
        with (self.here.directory / f"{name}.log").open("a") as out:
            process = subprocess.Popen(
                [*map(str, words)], env=environment, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.supernodes[name] = process
        return process

    def end(self, name, number=signal.SIGKILL):
        """End a SuperNode with its children."""
        process = self.supernodes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait()

    def received(self, name):
        """How many trainings a SuperNode has begun, by its log."""
        return (self.here.directory / f"{name}.log").read_text().count("Receiving: train message")

    def objects(self):
        """Files of messages that the bridge holds."""
        return [p for p in self.folder.glob("nodes/*/mailbox/**/*") if p.is_file()]


def x509_pem(path):
    """The certificate in a file, as PEM."""
    text = path.read_bytes()
    x509.load_pem_x509_certificate(text)
    return text


@contextmanager
def bridged(directory, app, settings=""):
    """A server, and a bridge that is not running yet; they end with the block."""
    with deployed(directory, app) as here:
        here.serve(steady=True)
        bridge = Bridged(here, app, settings)
        try:
            yield here, bridge
        finally:
            for name in list(bridge.supernodes):
                bridge.end(name)
