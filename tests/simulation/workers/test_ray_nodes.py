"""A Ray cluster of four nodes, each started by `ray start`; skipped without Ray, in `make long`.

All nodes are on this machine, with object stores, schedulers and worker processes of their own.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import support
from fedloom.simulation.training.simulator import Simulation
from support.ray_driver import described, lines

pytestmark = [pytest.mark.e2e, pytest.mark.long]
pytest.importorskip("ray")

START_S = 120
HERE = "--node-ip-address=127.0.0.1"


class Node:
    """One `ray start --block`, with all processes that it starts."""

    def __init__(self, environment, *options):
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", HERE),
            *("--disable-usage-stats", "--object-store-memory=100000000", *options),
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)

    def pids(self):
        """Of the node's processes: the raylet, its workers and others."""
        with suppress(psutil.NoSuchProcess):
            ours = psutil.Process(self._process.pid)
            return [*ours.children(recursive=True), ours]
        return []

    def kill(self):
        """SIGKILL them all."""
        for process in self.pids():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def cluster(workers):
    """The environment, the address and the nodes of one CPU each; the head has none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A token of this cluster alone: without one, Ray shares a file among all clusters of a user.
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    address, nodes = f"127.0.0.1:{port}", []
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        try:
            head = ("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
            nodes.append(Node(environment, *head, f"--temp-dir={folder}"))
            wait_until(lambda: answers(port))
            for _ in range(workers):  # nodes that start at once take each other's ports
                nodes.append(Node(environment, f"--address={address}", "--num-cpus=1"))
                wait_until(lambda: has_raylet(nodes[-1]))
                time.sleep(1.0)
            yield environment, address, nodes[1:]
        finally:
            for node in reversed(nodes):
                node.kill()


def answers(port):
    """Whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_raylet(node):
    """Whether a node has its scheduler."""
    names = []
    for process in node.pids():
        with suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return "raylet" in names


def wait_until(holds):
    """Poll; a cluster takes seconds to start."""
    limit = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.2)


@pytest.mark.longest
def test_a_node_killed_in_the_middle_of_a_round_changes_no_bit():
    """Two nodes of three do the lost node's clients again, and the rounds that follow."""
    simulation = Simulation(described())
    *alone, digest = lines(simulation)
    simulation.close()
    driver = Path(support.__path__[0]) / "ray_driver.py"
    with cluster(3) as (environment, address, nodes):
        run = subprocess.Popen(
            [sys.executable, str(driver), address, "3"], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        said = [run.stdout.readline()]
        time.sleep(0.7)  # of two seconds
        nodes[1].kill()
        rest, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert "was lost" in errors
    *rounds, found = [json.loads(line) for line in (said[0] + rest).splitlines()]
    assert found == digest
    assert [one["test"] for one in rounds] == [one["test"] for one in alone]
    assert [sum(one["clients"]) for one in rounds] == [12] * 4
    assert [len(one["clients"]) for one in rounds] == [3, 3, 2, 2]
