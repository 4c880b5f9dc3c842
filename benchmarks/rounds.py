"""What a round costs when training costs nothing: eight clients, mTLS, large and small models.

Every client is a process of its own that runs `fedloom.client.run` with a `Client` that adds a
constant. A round is the time from its opening to the next one's, by the ledger. Beside it the limit
of this machine: the same transfers with gRPC and mTLS alone; see bare_rounds.py. Prints a table,
where the time goes, and writes out/rounds.json.

With --flower, the same on a stock Flower deployment beside it: see flower_rounds.py.
"""

import argparse
import itertools
import json
import logging
import multiprocessing
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import bare_rounds
import numpy as np
from deployment import cpu_s, deployed, model, report

from fedloom.client import Client, run

SPAWN = multiprocessing.get_context("spawn")
TARGETS_S = {10_000_000: 1.5, 100_000: 0.15}
WARM_UP = 2
"""Rounds left out at the start: the first ones make the spool's files."""


class Adder(Client):
    """The cheapest training there is."""

    def train(self, params, task):  # noqa: ARG002
        for value in params.values():
            np.add(value, np.float32(0.001), out=value)
        return params, 32, {}


def attend(config):
    logging.disable(logging.INFO)
    run(Adder(), config)


@contextmanager
def attending(deployment, target=attend):
    """A process for every client; yields their process ids."""
    processes = [
        SPAWN.Process(target=target, args=(config,), daemon=True)
        for config in deployment.clients.values()
    ]
    for process in processes:
        process.start()
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(20)
            process.kill()


def measure(num_values, num_rounds, num_clients):
    """Seconds of each round after the warm-up, and what they cost a round."""
    total = num_rounds + WARM_UP
    spec = {
        "name": "rounds",
        "rounds": total,
        "evaluate": False,
        "cohort": {"goal": num_clients, "quorum": num_clients, "deadline_s": 3600.0},
        "train": {"steps": 1, "learning_rate": 1.0},
    }
    names = [f"c{i}" for i in range(num_clients)]
    with deployed(names) as deployment, attending(deployment) as pids:
        deployment.wait_online(num_clients)
        before = cpu_s(deployment.pid), sum(map(cpu_s, pids))
        run = deployment.submit(model(num_values), spec)
        row = deployment.until(run, every_s=1.0)
        after = cpu_s(deployment.pid), sum(map(cpu_s, pids))
        rows = deployment.rounds(run)
        events = deployment.events()
    opened = [r.opened_at for r in rows] + [row["ended_at"]]
    seconds = [b - a for a, b in itertools.pairwise(opened)][WARM_UP:]
    watched = {}
    for event in events:
        watched[event.name] = watched.get(event.name, 0.0) + (event.end - event.begin) / total
    return {
        "values": num_values,
        "clients": num_clients,
        "seconds": seconds,
        "server_cpu_s": (after[0] - before[0]) / total,
        "clients_cpu_s": (after[1] - before[1]) / total,
        "blocked_s_by_call": watched,
    }


def measure_bare(num_values, num_rounds, num_clients):
    """The same for gRPC and mTLS alone."""
    with deployed([f"c{i}" for i in range(num_clients)]) as deployment:
        return bare_rounds.measure(deployment, attending, num_values, num_rounds, WARM_UP)


def show(found):
    rows = [
        (
            f"{f['system']}, {f['values'] / 1e6:g}M values",
            statistics.median(f["seconds"]),
            min(f["seconds"]),
            max(f["seconds"]),
            TARGETS_S.get(f["values"], "") if f["system"] == "fedloom" else "",
            f["server_cpu_s"],
            f["clients_cpu_s"],
        )
        for f in found
    ]
    columns = ("", "s a round", "least", "most", "target", "server CPU s", "clients' CPU s")
    report("rounds", columns, rows, runs=found)
    for f in found:
        if f["system"] == "fedloom":
            calls = sorted(f["blocked_s_by_call"].items(), key=lambda item: -item[1])
            text = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in calls if s > 1e-4)
            print(f"  {f['values'] / 1e6:g}M, ms a round in the server's threads: {text}")


def flower(arguments, found):
    """The same sizes on Flower, by its own interpreter; says why where that cannot be."""
    script = str(Path(__file__).with_name("flower_rounds.py"))
    python = arguments.flower_python or sys.executable
    for num_values in arguments.values:
        command = [python, script, "--values", str(num_values), "--clients", str(arguments.clients)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"Flower skipped: {done.stderr.strip().splitlines()[-1:]}")
            return
        found.append({"system": "Flower", **json.loads(done.stdout.splitlines()[-1])})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--flower", action="store_true", help="measure Flower beside it")
    parser.add_argument("--flower-python", help="an interpreter that has flwr")
    arguments = parser.parse_args()
    found = []
    for num_values in arguments.values:
        result = measure(num_values, arguments.rounds, arguments.clients)
        found.append({"system": "fedloom", **result})
        result = measure_bare(num_values, arguments.rounds, arguments.clients)
        found.append({"system": "gRPC alone", **result})
    if arguments.flower or arguments.flower_python:
        flower(arguments, found)
    show(found)


if __name__ == "__main__":
    main()
