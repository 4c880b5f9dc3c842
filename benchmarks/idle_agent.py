"""What an idle agent costs its device: memory, processor time, and bytes on the network.

`fedloom client run` attends a server over mTLS, through a relay that counts the bytes of TCP, and
is left alone; its client is one of `fedloom.client` alone, without any training library. Prints a
table and writes out/idle_agent.json.
"""

import argparse
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from deployment import cpu_s, deployed, memory_bytes, report

MIB = 2**20
CLIENT = """\
from fedloom.client import Client


class Idle(Client):
    def train(self, params, task):
        return params, 1, {}
"""


class Counter:
    """Passes one port on to another and counts what passes, in both directions."""

    def __init__(self, port):
        self.bytes = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._to))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, target):
        while block := source.recv(65536):
            self.bytes += len(block)
            with suppress(OSError):  # the other side has gone
                target.sendall(block)


def measure(settle_s, idle_s):
    with deployed(["a"]) as deployment:
        deployment.wait_online(0)
        counter = Counter(int(deployment.config.fleet.rpartition(":")[2]))
        toml = deployment.clients["a"]
        toml.write_text(
            toml.read_text().replace(deployment.config.fleet, f"127.0.0.1:{counter.port}")
        )
        code = deployment.directory / "idle.py"
        code.write_text(CLIENT)
        command = [str(Path(sys.executable).with_name("fedloom")), "client", "run"]
        agent = subprocess.Popen(
            [*command, f"{code}:Idle", "--config", str(toml)], stderr=subprocess.DEVNULL
        )
        try:
            deployment.wait_online(1)
            time.sleep(settle_s)
            passed, cpu = counter.bytes, cpu_s(agent.pid)
            resident_before, _ = memory_bytes(agent.pid)
            time.sleep(idle_s)
            resident, peak = memory_bytes(agent.pid)
            return {
                "resident_mib": resident / MIB,
                "peak_mib": peak / MIB,
                "grown_kib": (resident - resident_before) / 1024,
                "cpu_percent": 100 * (cpu_s(agent.pid) - cpu) / idle_s,
                "bytes_per_s": (counter.bytes - passed) / idle_s,
                "handshake_bytes": passed,
            }
        finally:
            agent.terminate()
            agent.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=float, default=180.0, help="seconds of idling measured")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before that")
    arguments = parser.parse_args()
    found = measure(arguments.settle, arguments.idle)
    targets = {"resident_mib": "< 60", "cpu_percent": "< 0.1", "bytes_per_s": "< 100"}
    report(
        "idle_agent",
        ("", "measured", "target"),
        [(n, v, targets.get(n, "")) for n, v in found.items()],
    )


if __name__ == "__main__":
    main()
