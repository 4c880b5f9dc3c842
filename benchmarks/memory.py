"""How much memory the server needs: with 8 and with 32 clients, and with a model of 1.6 GB.

`--aggregation median krum` measures rules that look at every update.

Real agents train a few rounds over mTLS; all of a group begin at once. The peak is the kernel's
own record (VmHWM) of the server's resident memory. Prints a table and writes out/memory.json.
"""

import argparse
import asyncio
import logging
import multiprocessing
import time
from contextlib import contextmanager

from deployment import deployed, memory_bytes, model, report
from rounds import Adder

from fedloom.client import Agent
from fedloom.client.config import load

SPAWN = multiprocessing.get_context("spawn")
MIB = 2**20


def attend(paths):
    """Several clients in one process."""
    logging.disable(logging.INFO)

    async def main():
        await asyncio.gather(*(Agent(Adder(), load(path)).run() for path in paths))

    asyncio.run(main())


@contextmanager
def attending(deployment, num_processes):
    configs = list(deployment.clients.values())
    processes = [
        SPAWN.Process(target=attend, args=(configs[number::num_processes],), daemon=True)
        for number in range(num_processes)
    ]
    for process in processes:
        process.start()
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


RULES = {
    "mean": {"name": "mean"},
    "median": {"name": "median"},
    "krum": {"name": "krum", "num_byzantine": 2},
}
"""Aggregations by name; the last two read every update out of the spool."""


def measure(rule, num_clients, num_values, num_rounds, num_processes):
    spec = {
        "aggregation": RULES[rule],
        "name": "memory",
        "rounds": num_rounds,
        "evaluate": False,
        "cohort": {"goal": num_clients, "quorum": num_clients, "deadline_s": 3600.0},
        "train": {"steps": 1, "learning_rate": 1.0},
    }
    names = [f"c{i}" for i in range(num_clients)]
    with deployed(names) as deployment, attending(deployment, num_processes) as pids:
        deployment.wait_online(num_clients)
        time.sleep(1.0)
        idle, _ = memory_bytes(deployment.pid)
        clients_idle = max(memory_bytes(pid)[0] for pid in pids)
        run = deployment.submit(model(num_values), spec)
        row = deployment.until(run, timeout_s=3600.0)
        resident, peak = memory_bytes(deployment.pid)
        clients_peak = max(memory_bytes(pid)[1] for pid in pids)
        rounds = deployment.rounds(run)
    size = 4 * num_values
    per_process = num_clients / num_processes
    return {
        "aggregation": rule,
        "clients": num_clients,
        "model_mb": size / 1e6,
        "idle_mib": idle / MIB,
        "peak_mib": peak / MIB,
        "after_mib": resident / MIB,
        "models_over_idle": (peak - idle) / size,
        "client_models_over_idle": (clients_peak - clients_idle) / size / per_process,
        "s_a_round": (row["ended_at"] - rounds[0].opened_at) / len(rounds),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--aggregation", nargs="+", default=["mean"], choices=list(RULES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="also 400M values with two clients")
    arguments = parser.parse_args()
    found, grown = [], []
    for rule in arguments.aggregation:
        some = [measure(rule, n, arguments.values, arguments.rounds, 8) for n in arguments.clients]
        found += some
        grown.append(f"{rule} {some[-1]['peak_mib'] / some[0]['peak_mib'] - 1:+.1%}")
    if arguments.large:
        found.append(measure("mean", 2, 400_000_000, 1, 2))
    columns = tuple(found[0])
    report("memory", columns, [tuple(f.values()) for f in found])
    print(f"from the least to the most clients the peak grows: {', '.join(grown)}")
    print("targets: under 10 %; models over idle under 8")


if __name__ == "__main__":
    main()
