"""A simulation on a running Ray cluster, in a process of its own: a line of JSON after each round.

    python ray_driver.py ADDRESS WORKERS

Then a line with the model's digest. Started by tests/simulation/workers/test_ray_nodes.py.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from fedloom.simulation.training.simulator import Simulation
from support.experiments import experiment, population

SIZES = (30,) * 12
BATCH_S = 0.03


def described(workers=1, backend="local"):
    """Four rounds of all twelve clients, always with the same kernel."""
    return experiment(
        rounds=4, goal=12, data=population(SIZES), kernel="resident", backend=backend,
        workers=workers,
    )  # fmt: skip


def slow(output, target):
    """The loss of each batch, later: a client takes half a second."""
    time.sleep(BATCH_S)
    return torch.nn.functional.cross_entropy(output, target)


def lines(simulation):
    """What is compared: each round's metrics and clients by worker, then the model."""
    for record in simulation.rounds():
        metrics = {name: value.hex() for name, value in sorted(record.test.items())}
        yield {"test": metrics, "clients": [share.clients for share in record.shares]}
    yield {"digest": simulation.digest()}


def main(address, workers):
    import ray

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints, too
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    limit = time.monotonic() + 60
    while ray.cluster_resources().get("CPU", 0) < int(workers) and time.monotonic() < limit:
        time.sleep(0.2)  # nodes announce themselves
    simulation = Simulation(replace(described(int(workers), "ray"), loss=slow))
    for line in lines(simulation):
        print(json.dumps(line), flush=True, file=out)
    simulation.close()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
