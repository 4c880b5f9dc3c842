#!/usr/bin/env python3
"""Tries an upgrade: what an older commit began, this one finishes, to the same bytes.

    scripts/try_upgrade.py 63eb2e5

The older commit makes a server's directory and three clients' and does each run once without a
break. Then it begins the same runs anew; server and clients are killed amid their rounds, and the
processes of the newer commit go on in the same directories. Simulations that the older commit did
by half are resumed by the newer. Compared are the models: digests of runs, SHA-256 of files.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from commits import checked_out, environment
from compare_commits import BASE, DEVICES, toml

PATIENCE_S = 300.0
CLIENTS = ("site-a", "site-b", "site-c")
ROUNDS = 12
SITE = '''
"""A client whose update follows from the model and the task's seed, after a pause."""

import time

import numpy as np

from fedloom.client import Client

initial = {"weight": np.ones((40, 50), np.float32), "bias": np.zeros(50, np.float32)}


class Site(Client):
    def train(self, params, task):
        time.sleep(float(task.config.get("pause_s", 0.0)))
        rng = np.random.default_rng(task.seed)
        new = {}
        for name, value in params.items():
            step = 0.1 * (rng.normal(size=value.shape) - value)
            new[name] = value + step.astype(np.float32)
        return new, 10 + task.seed % 50, {"loss": float(np.abs(new["weight"]).mean())}

    def evaluate(self, params, task):
        return 7, {"loss": float(np.abs(params["weight"]).mean())}
'''
RUNS: dict[str, dict[str, Any]] = {
    "adam": {
        "strategy": {"name": "fedadam"},
        "compression": {"up": {"name": "top_k", "fraction": 0.2}, "down": {"name": "int8"}},
    },
    "scaffold": {"strategy": {"name": "scaffold", "clients": 3}, "weighting": "uniform"},
    "median": {"aggregation": {"name": "median"}, "weighting": "uniform"},
    "private": {
        "privacy": {
            "mechanism": "dp_fedavg", "clip": 1.0, "clip_quantile": 0.5,
            "noise_multiplier": 0.5, "delta": 1e-3, "noise": "seed",
        },
        "weighting": "uniform",
        "evaluate": False,
    },
    "personal": {"personal": {"keep": ["bias"]}},
    "choosy": {
        "selection": {"name": "power_of_choice"},
        "cohort": {"goal": 2, "quorum": 2, "candidates": 3},
    },
}  # fmt: skip
SIMULATIONS: dict[str, dict[str, Any]] = {
    "plain": {"strategy": {"name": "fedadam"}},
    "memory": {"strategy": {"name": "scaffold", "clients": 6}, "weighting": "uniform"},
    "compressed": {
        "compression": {"up": {"name": "top_k", "fraction": 0.2}, "down": {"name": "int8"}}
    },
    "buffered": {
        "cohort": {"mode": "buffered", "goal": 2, "concurrency": 4}, "devices": DEVICES,
    },
    "choosy": {"selection": {"name": "oort"}, "devices": DEVICES, "cohort": {"goal": 3}},
    "personal": {"personal": {"name": "ditto", "pull": 0.5}},
}  # fmt: skip


class Trial:
    """An upgrade under trial.

    Args:
        folder: empty; everything goes there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = folder / "server"
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "log").open("ab")

    # ---- processes ---------------------------------------------------------------------------

    def command(self, code: Path, *words: str) -> Any:
        """Run a command to its end; what it prints, as JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "fedloom.cli.main", *words, "--json"],
            cwd=self.folder, env=environment(code), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"fedloom {' '.join(words)}: {done.stderr}")
        return json.loads(done.stdout)

    def start(self, code: Path) -> None:
        """Start a server and the clients of a commit."""
        self._keep(code, "server", "run", "--dir", str(self.server))
        for name in CLIENTS:
            config = self.folder / name / "client.toml"
            if config.exists():
                self._keep(code, "client", "run", "site.py:Site", "--config", str(config))

    def _keep(self, code: Path, *words: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedloom.cli.main", *words],
            cwd=self.folder, env=environment(code), stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._running.append(process)

    def end(self, number: int) -> None:
        """End all processes by a signal."""
        for process in self._running:
            if process.poll() is None:
                os.kill(process.pid, number)
        for process in self._running:
            process.wait()
        self._running = []

    # ---- a server and its runs ---------------------------------------------------------------

    def set_up(self, code: Path) -> None:
        """Make the directories of a server and its clients."""
        (self.folder / "site.py").write_text(SITE)
        self.command(code, "model", "init", "site.py:initial", "--out", "initial.safetensors")
        fleet, enrolment = (f"127.0.0.1:{port}" for port in _free_ports(2))
        where = ("--dir", str(self.server))
        self.command(code, "server", "init", *where, "--fleet", fleet, "--enrolment", enrolment)
        self.start(code)
        self.wait()
        for name in CLIENTS:
            made = self.command(code, "token", "create", "--client", name, *where)
            token = (made["tokens"][0] if "tokens" in made else made)["token"]
            here = ("--dir", str(self.folder / name))
            self.command(code, "client", "enroll", "--server", enrolment, "--token", token, *here)
        self.end(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.server / "control.sock").exists():
            if time.monotonic() > deadline or any(p.poll() for p in self._running):
                raise SystemExit((self.folder / "log").read_text()[-3000:])
            time.sleep(0.1)

    def submit(self, code: Path, name: str, pause_s: float) -> str:
        """Begin a run; gives its id."""
        values = {
            "name": name,
            "rounds": ROUNDS,
            "seed": 3,
            "cohort": {"goal": 3, "quorum": 3},
            "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
            "config": {"pause_s": pause_s},
            **RUNS[name],
        }
        path = self.folder / "run.toml"
        path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in values.items()))
        where = ("--model", "initial.safetensors", "--dir", str(self.server))
        return str(self.command(code, "run", "submit", str(path), *where)["id"])

    def status(self, code: Path, run: str) -> Any:
        """A run as the command line shows it."""
        return self.command(code, "run", "status", run, "--dir", str(self.server))

    def finish(self, code: Path, run: str) -> str:
        """Wait for a run's end; gives its model."""
        deadline = time.monotonic() + PATIENCE_S
        while (status := self.status(code, run))["state"] == "running":
            if time.monotonic() > deadline:
                raise SystemExit(f"{run} did not finish: {json.dumps(status)[:2000]}")
            time.sleep(0.5)
        if status["state"] != "finished":
            raise SystemExit(f"{run} is {status['state']}: {status['reason']}")
        return str(status["model"])

    def runs(self, old: Path, new: Path) -> dict[str, tuple[str, str]]:
        """Case → model without a break, and by two commits."""
        self.set_up(old)
        self.start(old)
        self.wait()
        whole = {name: self.submit(old, name, 0.0) for name in RUNS}
        models = {name: self.finish(old, run) for name, run in whole.items()}
        halves = {name: self.submit(old, name, 0.3) for name in RUNS}
        done: dict[str, int] = {}
        while not any(done.values()) or max(done.values()) < ROUNDS // 3:
            done = {n: self.status(old, run)["rounds_committed"] for n, run in halves.items()}
        print(f"killed after rounds: {done}", file=sys.stderr)
        self.end(signal.SIGKILL)
        (self.server / "control.sock").unlink(missing_ok=True)
        self.start(new)
        self.wait()
        after = {name: self.finish(new, run) for name, run in halves.items()}
        self.end(signal.SIGTERM)
        return {f"run {name}": (models[name], after[name]) for name in RUNS}

    # ---- simulations -------------------------------------------------------------------------

    def simulations(self, old: Path, new: Path) -> dict[str, tuple[str, str]]:
        """Case → model without a break, and by two commits."""
        found = {}
        for name, tables in SIMULATIONS.items():
            path = self.folder / f"{name}.toml"
            values = {**BASE, "evaluate": False, **tables}
            path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in values.items()))
            whole, half = self.folder / f"{name}-whole", self.folder / f"{name}-half"
            words = ("simulate", str(path), "--quiet", "--workers", "1")
            self.command(old, *words, "--set", "rounds=6", "--out", str(whole))
            self.command(old, *words, "--set", "rounds=3", "--out", str(half))
            kept = ("--set", "rounds=6", *_kept_sums(old))
            self.command(new, *words, *kept, "--out", str(half), "--resume")
            found[f"simulation {name}"] = (_digest(whole), _digest(half))
        return found


def _kept_sums(old: Path) -> tuple[str, ...]:
    """The setting that keeps the sums of a commit from before exact ones."""
    is_exact = (old / "docs" / "adr" / "0020-sums-keep-every-bit.md").exists()
    return () if is_exact else ("--set", "sum_bits=64")


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> int:
    """Try an upgrade and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD", help="the commit to upgrade from")
    parser.add_argument("new", nargs="?", metavar="NEW", default="HEAD", help="to this one; HEAD")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    parser.add_argument("--only", choices=("runs", "simulations"), help="half of it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedloom-upgrade-") as name:
        folder = Path(arguments.keep or name).resolve()
        if arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        codes = Path(name).resolve()
        with (
            checked_out(arguments.old, codes / "old") as old,
            checked_out(arguments.new, codes / "new") as new,
        ):
            trial = Trial(folder)
            try:
                found = {}
                if arguments.only != "simulations":
                    found |= trial.runs(old, new)
                if arguments.only != "runs":
                    found |= trial.simulations(old, new)
            finally:
                trial.end(signal.SIGKILL)
    for case, (whole, halves) in found.items():
        same = "same" if whole == halves else "OTHER"
        print(f"{case:24}  {whole[:16]}  {halves[:16]}  {same}")
    return int(any(whole != halves for whole, halves in found.values()))


if __name__ == "__main__":
    sys.exit(main())
