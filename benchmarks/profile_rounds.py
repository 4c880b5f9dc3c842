"""Where the CPU time of a round goes: seconds for each gigabyte of updates, by stage.

Real agents, one process each, and a real server over mTLS; the training adds a constant. Stages
are measured by stop-watches in the processes themselves (stopwatch.py); what they do not see is
gRPC, TLS and the event loop. With Linux's `perf` installed, the server's time by library beside it.
Prints tables and writes out/profile_rounds.json.
"""

import argparse
import logging
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from deployment import cpu_s, deployed, model, report
from rounds import Adder, attending
from stopwatch import events_in, watch

from fedloom.client import run

EVENTS = "events"
POLL_S = 0.02
IDLE = 0.03
"""Share of a core below which a server counts as idle."""
PATIENCE_S = 300.0
PERF_HZ = "499"
LIBRARIES = {
    "cygrpc": "gRPC and its TLS",
    "libcrypto": "SHA-256",
    "kernel": "kernel: network, page cache, disk",
    "libpython": "Python",
    "JIT": "compiled fold",
    "multiarray": "numpy",
    "libc.so": "copies and malloc",
    "crc32c": "checksum",
    "sqlite": "SQLite",
}


def attend(config):
    """A client process that watches its stages."""
    from fedloom.client.agent import task_run  # noqa: PLC0415 - in the child alone
    from fedloom.client.state.partial_download import PartialDownload  # noqa: PLC0415

    logging.disable(logging.INFO)
    with (config.parent / EVENTS).open("a", buffering=1) as file:
        for owner, name, label in (
            (PartialDownload, "append", "write the model"),
            (task_run, "read_params", "read the model"),
            (Adder, "train", "train"),
            (task_run, "differences", "difference"),
            (task_run, "write_body", "difference, encode, checksum, write"),
        ):
            watch(owner, name, file, label)
        run(Adder(), config)


@contextmanager
def perf(pid, folder):
    """Record where a process spends its time; yields a function for (library, share) afterwards."""
    path = folder / "perf"
    if shutil.which("perf") is None:
        yield Counter
        return
    command = ["perf", "record", "-e", "cpu-clock", "-F", PERF_HZ, "-o", str(path), "-p", str(pid)]
    recording = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield lambda: _shares(path)
    finally:
        recording.send_signal(signal.SIGINT)
        recording.wait(20)


def _shares(path):
    command = ["perf", "report", "-i", str(path), "--stdio", "--sort", "dso"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = Counter()
    for line in shown.splitlines():
        share, _, library = line.strip().partition("%")
        if library and not line.startswith("#"):
            names = [name for part, name in LIBRARIES.items() if part in library]
            found[names[0] if names else "others"] += float(share) / 100
    return found


def measure(arguments, folder):
    """CPU seconds by stage of server and clients, and the gigabytes of updates meanwhile."""
    spec = {
        "name": "profile",
        "rounds": arguments.rounds + 1,
        "evaluate": False,
        "cohort": {"goal": arguments.clients, "quorum": arguments.clients, "deadline_s": 3600.0},
        "train": {"steps": 1, "learning_rate": 1.0},
    }
    names = [f"c{i}" for i in range(arguments.clients)]
    with deployed(names, "profile_server.py") as found, attending(found, attend) as pids:
        found.wait_online(arguments.clients)
        wait_idle(found.pid)
        run_id = found.submit(model(arguments.values), spec)
        wait_for(found, run_id, 1)  # which makes the spool's files
        begin, before = time.monotonic(), (cpu_s(found.pid), sum(map(cpu_s, pids)))
        with perf(found.pid, folder) as shares:
            wait_for(found, run_id, arguments.rounds + 1)
        after = cpu_s(found.pid), sum(map(cpu_s, pids))
        clients = [e for path in found.clients.values() for e in events_in(path.parent / EVENTS)]
        server = found.events()
    return {
        "gb": 4e-9 * arguments.values * arguments.clients * arguments.rounds,
        "server": stages(server, begin, after[0] - before[0]),
        "clients": stages(clients, begin, after[1] - before[1]),
        "libraries": shares(),
    }


def wait_idle(pid):
    """Wait until a server has done what follows its start, such as describing its API."""
    before = -1.0
    while (now := cpu_s(pid)) > before + IDLE:
        before = now
        time.sleep(1.0)


def wait_for(deployment, run_id, rounds):
    """Wait for committed rounds; by the ledger's file, which costs the server nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while len(deployment.rounds(run_id)) < rounds:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the rounds do not end:\n{deployment.log()}")
        time.sleep(POLL_S)


def stages(events, begin, total_s):
    """CPU seconds by stage since a moment; the rest is what no stop-watch saw."""
    found = Counter()
    for event in events:
        if event.begin >= begin:
            found[event.name] += event.cpu_s
    found["gRPC, TLS, event loop"] = total_s - found.total()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=10_000_000, help="float32 of the model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6, help="after one that warms up")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, Path(folder))
    rows = [
        (f"{who}: {stage}", seconds / found["gb"], seconds / found[who].total())
        for who in ("server", "clients")
        for stage, seconds in found[who].most_common()
    ]
    total_s = found["server"].total() / found["gb"]
    rows += [
        (f"server by library: {library}", share * total_s, share)
        for library, share in found["libraries"].most_common()
    ]
    report("profile_rounds", ("", "CPU s/GB", "share"), rows, found=found)
    if not found["libraries"]:
        print("perf is not installed: no time by library")


if __name__ == "__main__":
    main()
