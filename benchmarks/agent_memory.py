"""Memory that an agent needs above the training code's own, in multiples of the model.

One agent attends over mTLS and does rounds with models of 40 and 400 MB. Its training changes the
parameters in place and needs nothing else, so its own memory is the one copy that it was handed.
The peak is the kernel's record (VmHWM), which counts pages of mapped files too, less what the idle
agent had. Besides a plain round, one with a rule that remembers (SCAFFOLD) and one with a quantised
update. Prints a table and writes out/agent_memory.json.
"""

import argparse
import logging
import multiprocessing
import time
from pathlib import Path

import numpy as np
from deployment import deployed, memory_bytes, model, report

from fedloom.client import Client, run

SPAWN = multiprocessing.get_context("spawn")
MIB = 2**20
CASES = {
    "plain": {},
    "int8": {"compression": {"up": {"name": "int8"}}},
    "scaffold": {"strategy": {"name": "scaffold", "clients": 1}},
}


class InPlace(Client):
    """Changes what it was handed, and needs nothing else."""

    def train(self, params, task):
        for name in params:
            params[name] += np.float32(0.01 * task.settings.learning_rate)
        return params, 1, {}


def attend(path):
    logging.disable(logging.INFO)
    run(InPlace(), path)


def measure(case, size_mb, rounds):
    spec = {
        "name": "memory",
        "rounds": rounds,
        "evaluate": False,
        "cohort": {"goal": 1, "quorum": 1, "deadline_s": 3600.0},
        "train": {"steps": 1, "learning_rate": 1.0},
        **CASES[case],
    }
    values = size_mb * 1_000_000 // 4
    with deployed(["a"]) as deployment:
        agent = SPAWN.Process(target=attend, args=(deployment.clients["a"],), daemon=True)
        agent.start()
        try:
            deployment.wait_online(1)
            time.sleep(8.0)  # until it has given back what its start needed
            Path(f"/proc/{agent.pid}/clear_refs").write_text("5")
            idle, _ = memory_bytes(agent.pid)
            deployment.until(deployment.submit(model(values), spec), timeout_s=600.0)
            _, peak = memory_bytes(agent.pid)
            time.sleep(8.0)
            after, _ = memory_bytes(agent.pid)
        finally:
            agent.kill()
            agent.join()
    models = (peak - idle) / (4 * values)
    return (case, size_mb, idle / MIB, peak / MIB, after / MIB, models, models - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 400], help="MB of the model")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    columns = ("case", "MB", "idle_mib", "peak_mib", "idle_after_mib", "models", "above_own")
    sizes, cases = arguments.sizes, arguments.cases
    rows = [measure(case, size, arguments.rounds) for size in sizes for case in cases]
    report("agent_memory", columns, rows)
    print("target: above the training's own copy of the model, under 3 models")


if __name__ == "__main__":
    main()
