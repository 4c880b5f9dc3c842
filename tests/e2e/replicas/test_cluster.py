"""`make cluster` and `make cluster-stop`, as a newcomer types them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster import haproxy, postgresql, replicas
from cluster.prerequisites import check
from cluster.processes import Processes
from cluster.settings import REPLICAS, Settings
from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UsageError
from support.marks import sampled
from support.patience import PATIENCE_S
from support.ports import port_block
from support.site_servers import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[3]
NUM_DEVICES = 3


class MadeCluster:
    """A cluster by the commands of the Makefile, in a folder and on ports of its own."""

    def __init__(self):
        # Not in pytest's folders, which PostgreSQL's user may not enter.
        self.top = Path(tempfile.mkdtemp(prefix="fedloom-cluster-"))
        self.top.chmod(0o755)
        self.folder, self.port = self.top / "cluster", _free_ports(self.top / "cluster")
        self.processes = Processes(self.folder)

    def command(self, target, *more):
        environment = sys.prefix  # made and up to date, as this runs in it
        values = {"VENV": environment, "CLUSTER": self.folder, "PORT": self.port}
        given = [f"{name}={value}" for name, value in values.items()]
        return [
            "make",
            "-o",
            f"{environment}/.dev",
            target,
            *given,
            f"DEVICES={NUM_DEVICES}",
            *more,
        ]

    def make(self, target, *more):
        """Make a target; what it prints, and its exit status."""
        done = subprocess.run(
            self.command(target, *more), cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=3 * PATIENCE_S,
        )  # fmt: skip
        return done.stdout + done.stderr, done.returncode

    @property
    def settings(self):
        return Settings.read(self.folder)

    def driver(self):
        return wait_until(lambda: replicas.driver(self.settings), "a replica drives")

    def committed(self):
        control = Control(self.folder / self.driver())
        return control.get("runs", self.settings.run)["rounds_committed"]

    def left(self):
        """What still runs of it, by command line."""
        found = psutil.process_iter(["cmdline"])
        lines = [" ".join(each.info["cmdline"] or ()) for each in found]
        store = f"moto.server -H 127.0.0.1 -p {self.port + 2}"
        return [line for line in lines if str(self.folder) in line or store in line]


def _free_ports(folder):
    while True:
        port = port_block()
        with suppress(UsageError):  # one of them is taken
            check(folder, Settings(port=port, num_devices=NUM_DEVICES))
            return port


@pytest.fixture
def made():
    if haproxy.program() is None or postgresql.programs() is None:
        pytest.skip("haproxy or PostgreSQL is not installed")
    cluster = MadeCluster()
    yield cluster
    cluster.make("cluster-stop")
    shutil.rmtree(cluster.top)


def test_rounds_go_on_when_the_driver_is_killed_and_nothing_is_left_at_the_end(made):
    """Start it, kill by the PID in the table, start that replica again, stop all."""
    shown, status = made.make("cluster")
    assert status == 0, shown
    assert "in the memory of the S3 server" in shown
    assert f"https://console.localhost:{made.port}/login/link?code=" in shown
    roles = {line.split()[0]: line for line in shown.splitlines() if line.startswith("fl-")}
    assert sum(" drives " in line for line in roles.values()) == 1
    assert sum(" gate " in line for line in roles.values()) == 2
    pids = {each.name: each.pid for each in made.processes.all()}
    assert len(pids) == 3 + len(REPLICAS) + NUM_DEVICES
    assert all(f" {pid} " in shown for pid in pids.values())

    killed, before = made.driver(), made.committed()
    (line,) = [line for line in shown.splitlines() if "kill -9" in line]
    assert f"kill -9 {pids[killed]};" in line
    os.kill(pids[killed], signal.SIGKILL)
    assert made.driver() != killed
    wait_until(lambda: made.committed() > before + 2, "rounds go on")
    shown, _ = made.make("cluster-restart")
    assert f"starting {killed}: starts again" in shown
    assert made.processes.runs(killed)

    again, status = made.make("cluster")
    assert status != 0
    assert "Expected no cluster in" in again
    shown, status = made.make("cluster-stop")
    assert status == 0, shown
    assert f"{len(pids)} processes ended" in shown
    assert made.left() == []
    assert not made.folder.exists()


@pytest.mark.parametrize("seen", sampled(["postgresql", "fl-1", "device-1"], 3, first=1))
def test_what_a_killed_command_left_is_stopped(made, seen):
    """By SIGKILL, when so much runs."""
    with subprocess.Popen(
        made.command("cluster"), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    ) as command:
        wait_until(lambda: made.processes.runs(seen), f"{seen} runs")
        os.killpg(command.pid, signal.SIGKILL)
    assert made.left()
    shown, status = made.make("cluster-stop", "KEEP=1")
    assert status == 0, shown
    assert made.left() == []
    assert (made.folder / "logs" / f"{seen}.log").exists()
    made.make("cluster-stop")
    assert not made.folder.exists()


def test_an_interrupted_command_ends_what_it_started(made):
    """As by Ctrl-C, which reaches make and the command; the logs stay."""
    with subprocess.Popen(
        made.command("cluster"), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    ) as command:
        wait_until(lambda: made.processes.runs("fl-1"), "a replica runs")
        os.killpg(command.pid, signal.SIGINT)
    assert command.returncode != 0
    assert made.left() == []
    assert (made.folder / "logs").is_dir()
