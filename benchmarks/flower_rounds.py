"""What a round costs on a stock Flower 1.41 deployment: superlink, supernodes, FedAvg, no TLS.

Run by rounds.py --flower, with an interpreter that has flwr; by hand:

    python flower_rounds.py --values 100000

The clients add a constant, there is no evaluation, and a round is the time from one aggregation's
end to the next one's. Prints one line of JSON. Exits 2, with the reason, where flwr is missing.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 1
LIMIT_S = 600.0

PYPROJECT = """\
[project]
name = "addition"
version = "1.0.0"
description = "adds a constant"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "addition.server:app"
clientapp = "addition.client:app"

[tool.flwr.app.config]
values = {values}
rounds = {rounds}
clients = {clients}
times = "{times}"
"""

SERVER = """\
import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    def __init__(self, path, **settings):
        super().__init__(**settings)
        self.path = path

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        with open(self.path, "a") as file:
            file.write(f"{time.monotonic()}\\n")
        return found


@app.main()
def main(grid, context):
    config = context.run_config
    clients = config["clients"]
    rng = np.random.default_rng(0)
    values = 0.01 * rng.standard_normal(config["values"], dtype=np.float32)
    half = len(values) // 2
    strategy = Timed(
        config["times"],
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([values[:half], values[half:]]),
        num_rounds=config["rounds"],
    )
"""

CLIENT = """\
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    content = RecordDict(
        {
            "arrays": ArrayRecord([a + np.float32(0.001) for a in arrays]),
            "metrics": MetricRecord({"num-examples": 32}),
        }
    )
    return Message(content=content, reply_to=message)
"""


def write_app(directory, **settings):
    package = directory / "app" / "addition"
    package.mkdir(parents=True)
    (directory / "app" / "pyproject.toml").write_text(PYPROJECT.format(**settings))
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER)
    (package / "client.py").write_text(CLIENT)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def tree_cpu_s(pids):
    """Processor seconds of processes and of all that descend from them, the ended ones too."""
    fields = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        fields[int(stat.parent.name)] = (int(values[1]), sum(map(int, values[11:15])) / TICKS)
    total, wanted = 0.0, list(pids)
    while wanted:
        pid = wanted.pop()
        total += fields.get(pid, (0, 0.0))[1]
        wanted += [child for child, (parent, _) in fields.items() if parent == pid]
    return total


class Deployment:
    """A superlink and its supernodes."""

    def __init__(self, directory, num_clients):
        self.processes = []
        self.log = (directory / "log").open("wb")
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(directory / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        port, *nodes = free_ports(1 + num_clients)
        (directory / "home").mkdir()
        (directory / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self.superlink = self.start(
            "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
            "--port", str(port),
        )  # fmt: skip
        time.sleep(5.0)
        self.supernodes = [
            self.start(
                "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
                "--port", str(node),
            )
            for node in nodes
        ]  # fmt: skip

    def start(self, *command):
        process = subprocess.Popen(
            command, env=self.environment, stdout=self.log, stderr=self.log, start_new_session=True
        )
        self.processes.append(process)
        return process

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def measure(directory, arguments):
    times = directory / "times"
    write_app(
        directory,
        values=arguments.values,
        rounds=arguments.rounds + WARM_UP,
        clients=arguments.clients,
        times=times,
    )
    deployment = Deployment(directory, arguments.clients)
    try:
        time.sleep(5.0)
        command = ["flwr", "run", str(directory / "app"), "here"]
        subprocess.run(
            command,
            env=deployment.environment,
            check=True,
            stdout=deployment.log,
            stderr=deployment.log,
            timeout=120,
        )
        deadline = time.monotonic() + LIMIT_S
        while len(lines := times.read_text().split() if times.exists() else []) < (
            arguments.rounds + WARM_UP
        ):
            if time.monotonic() > deadline:
                text = (directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"no end in sight after {len(lines)} rounds:\n{text}")
            time.sleep(0.2)
        server = tree_cpu_s([deployment.superlink.pid])
        clients = tree_cpu_s([node.pid for node in deployment.supernodes])
    finally:
        deployment.stop()
    ends = list(map(float, lines))
    total = arguments.rounds + WARM_UP
    return {
        "version": importlib.metadata.version("flwr"),
        "values": arguments.values,
        "clients": arguments.clients,
        "seconds": [b - a for a, b in pairwise(ends)],
        "server_cpu_s": server / total,  # with starting up
        "clients_cpu_s": clients / total,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    if importlib.util.find_spec("flwr") is None:
        print(f"{sys.executable} has no flwr", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        found = measure(Path(temporary), arguments)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
