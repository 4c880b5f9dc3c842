"""Time and memory of large populations: a million on the virtual clock, 100,000 that train.

    python benchmarks/scale.py [--quick]

The first plays a million events: rounds of 1,000 of a million devices, which drop out, fail, come
and go, without training. The second trains McMahan's 2NN with 1,000 of 100,000 clients a round, 60
examples each, of as many as MNIST has, with two workers; the virtual clock chooses whose updates
count. Each runs in a process of its own; memory is the most that all processes of a case held at
once (PSS). Prints a table and writes out/scale.json.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
from deployment import report
from simulation_tasks import BATCH, LEARNING_RATE, two_nn
from virtual_clock import ABSENT, TROUBLE

from fedloom.server.engine import RoundConfig, uniform
from fedloom.simulation import EngineSettings, Examples, Experiment, Population, run_spec, simulate
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.data.population import numbered
from simulation import SAMPLE_S, tree_mb

EXAMPLES, OWN = 60_000, 60


def clock(clients, most):
    """Play rounds of 1,000 until so many events; returns them."""
    population = Clock(numbered(clients), Devices.build(ABSENT, clients, seed=1))
    load = Load(trained=np.full(clients, 600), download_bytes=4_000_000, upload_bytes=4_000_000)
    config = RoundConfig(goal=1000, over_selection=1.3, quorum=500, deadline_s=120.0)
    events, number, now = 0, 0, 0.0
    while events < most:
        game = population.play(
            config, select=uniform(1, number), round_number=number, load=load, start_s=now
        )
        events, number, now = events + game.events, number + 1, game.end_s
    return events


def training(clients, rounds):
    """Train; returns the clients trained."""
    generator = np.random.default_rng(1)
    x = generator.random((EXAMPLES, 784), dtype=np.float32)
    y = generator.integers(0, 10, EXAMPLES)
    shards = list(generator.integers(0, EXAMPLES, (clients, OWN)))
    experiment = Experiment(
        population=Population(
            examples=Examples(x=x, y=y), names=numbered(clients), shards=shards, num_classes=10
        ),
        model=two_nn,
        spec=run_spec(
            {
                "rounds": rounds,
                "evaluate": False,
                "cohort": {"goal": 1000, "over_selection": 1.3},
                "train": {"epochs": 1, "batch_size": BATCH, "learning_rate": LEARNING_RATE},
            }
        ),
        devices=Devices.build(TROUBLE, clients, seed=1),
        engine=EngineSettings(workers=2, device="cpu"),
        test_every=0,
    )
    return sum(record.accepted for record in simulate(experiment, show=False).records)


CASES = {
    "1,000,000 on the clock, a million events": (partial(clock, 1_000_000, 1_000_000), 30.0, None),
    "100,000, 1,000 a round, 3 rounds": (partial(training, 100_000, 3), None, 4000.0),
    "quick: 20,000 on the clock, 4,000 events": (partial(clock, 20_000, 4_000), None, None),
    "quick: 2,000, 1,000 a round, 1 round": (partial(training, 2_000, 1), None, None),
}


def measured(name):
    """What a case returns, its seconds from start to end, and its most MB."""
    begin, peak, done = time.perf_counter(), [0.0], threading.Event()
    child = subprocess.Popen([sys.executable, __file__, "--case", name], stdout=subprocess.PIPE)

    def watch():
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], tree_mb(child.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = child.communicate()
    done.set()
    watcher.join()
    if child.returncode:
        sys.exit(f"{name} ended with {child.returncode}")
    return json.loads(out.splitlines()[-1]), time.perf_counter() - begin, peak[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="run this one here; for this script itself")
    parser.add_argument("--quick", action="store_true", help="small, for tests")
    arguments = parser.parse_args()
    if arguments.case:
        print(CASES[arguments.case][0]())
        return
    rows = []
    for name, (_, most_s, most_mb) in CASES.items():
        if name.startswith("quick") == arguments.quick:
            rows.append((name, *measured(name), most_s or "", most_mb or ""))
    report("scale", ("case", "events or clients", "s", "MB", "s at most", "MB at most"), rows)


if __name__ == "__main__":
    main()
