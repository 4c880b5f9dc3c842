"""Device events a second through the virtual clock, beside a plain heap of tuples and SimPy.

    python benchmarks/virtual_clock.py [--events 1000000] [--repeats 3]

Every case handles at least that many events, draws of cohorts and everything else included; no
client is trained. The heap, which pushes and pops a tuple an event, is the least that any
discrete-event simulation pays; SimPy, where it is installed, runs the same devices as processes
with two timeouts each, and decides nothing. Figures are of CPU seconds on one core, the best of
the repeats. The table goes to the terminal and the same figures to out/virtual_clock.json.
"""

import argparse
import importlib
import importlib.util
import json
import os
import platform
import random
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from time import process_time

import numpy as np

from fedloom.server.engine import RoundConfig, uniform
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.data.population import numbered

OUT = Path(__file__).resolve().parent.parent / "out"
Measured = tuple[int, float]  # events, CPU seconds

SPEEDS = {
    "compute_examples_per_s": {"distribution": "lognormal", "median": 100, "sigma": 0.5},
    "download_mbit_s": {"distribution": "lognormal", "median": 20, "sigma": 0.5},
    "upload_mbit_s": 5,
}
TROUBLE = SPEEDS | {"drop_out": 0.05, "failure": 0.1, "jitter": 0.2}
ABSENT = TROUBLE | {
    "availability": {
        "on_s": {"distribution": "exponential", "mean": 600, "min": 10},
        "off_s": {"distribution": "exponential", "mean": 600, "min": 10},
    }
}


def plain_heap(events: int) -> Measured:
    """The peer: a list of 1,300 that is filled and emptied, as a round's is."""
    draw = random.Random(1)
    times = [draw.random() for _ in range(1300)]
    rounds = -(-events // len(times))
    begin = process_time()
    for _ in range(rounds):
        heap: list[tuple[float, int, int, int]] = []
        for number, time in enumerate(times):
            heappush(heap, (time, number, 0, number))
        while heap:
            heappop(heap)
    return rounds * len(times), process_time() - begin


def simpy_processes(events: int) -> Measured:
    """The peer: 1,300 processes a round, each of which takes the task and works."""
    simpy = importlib.import_module("simpy")
    draw = random.Random(1)
    times = [draw.random() for _ in range(1300)]
    rounds = -(-events // (2 * len(times)))

    def device(environment, seconds):
        yield environment.timeout(0)
        yield environment.timeout(seconds)

    begin = process_time()
    for _ in range(rounds):
        environment = simpy.Environment()
        for seconds in times:
            environment.process(device(environment, seconds))
        environment.run()
    return 2 * rounds * len(times), process_time() - begin


def player(table: dict, clients: int) -> Callable[[], int]:
    """Plays the next round, 1,000 reports wanted of 1,300 asked; returns its number of events."""
    clock = Clock(numbered(clients), Devices.build(table, clients, seed=1))
    load = Load(trained=np.full(clients, 600), download_bytes=4_000_000, upload_bytes=4_000_000)
    config = RoundConfig(goal=1000, over_selection=1.3, quorum=500, deadline_s=120.0)
    number, now = 0, 0.0

    def play() -> int:
        nonlocal number, now
        game = clock.play(
            config, select=uniform(1, number), round_number=number, load=load, start_s=now
        )
        number, now = number + 1, game.end_s
        return game.events

    return play


def rounds_of(table: dict, clients: int) -> Callable[[int], Measured]:
    """The clock: one round after the other."""

    def case(events: int) -> Measured:
        play = player(table, clients)
        handled = 0
        begin = process_time()
        while handled < events:
            handled += play()
        return handled, process_time() - begin

    return case


CASES: dict[str, Callable[[int], Measured]] = {
    "heapq of tuples (the peer)": plain_heap,
    "SimPy, nothing decided": simpy_processes,
    "10,000 devices, always there": rounds_of(SPEEDS, 10_000),
    "10,000 that drop out, fail, jitter": rounds_of(TROUBLE, 10_000),
    "10,000 that come and go as well": rounds_of(ABSENT, 10_000),
    "100,000 devices, always there": rounds_of(SPEEDS, 100_000),
    "100,000 that drop out, fail, jitter": rounds_of(TROUBLE, 100_000),
    "100,000 that come and go as well": rounds_of(ABSENT, 100_000),
}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rates = {}
    for name, case in CASES.items():
        if case is simpy_processes and importlib.util.find_spec("simpy") is None:
            print(f"{name}: not installed")
            continue
        measured = [case(arguments.events) for _ in range(arguments.repeats)]
        rates[name] = max(events / seconds for events, seconds in measured)
    peer = next(iter(rates.values()))
    print(f"{arguments.events:,} events, best of {arguments.repeats}")
    for name, rate in rates.items():
        a_million_s = 1e6 / rate
        print(f"{name:38}{rate:12,.0f} events/s {a_million_s:6.2f} s a million {rate / peer:6.2f}")
    OUT.mkdir(exist_ok=True)
    report = {
        "events": arguments.events,
        "repeats": arguments.repeats,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "events_per_s": {name: round(rate) for name, rate in rates.items()},
    }
    (OUT / "virtual_clock.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
