"""Events a second through the round engine, beside a plain heap of tuples in the same run.

    python benchmarks/engine_events.py [--clients 200000] [--repeats 3]

The peer, `heapq` over (time, number, client) tuples, is the least that any discrete-event
simulation pays. Figures are of CPU seconds, so that neighbours on the machine disturb them less,
and the best of the repeats. The table goes to the terminal and the same figures to
out/engine_events.json.
"""

import argparse
import json
import os
import platform
import random
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from time import process_time

from fedloom.server.engine import (
    Attended,
    ClientFailed,
    Close,
    Left,
    Offer,
    OfferAccepted,
    Round,
    RoundConfig,
    UpdateAccepted,
    Wake,
    uniform,
)

OUT = Path(__file__).resolve().parent.parent / "out"
Measured = tuple[int, float]  # events, seconds


def a_round(goal: int, available: list[str]) -> Round:
    """An open round that no timer ends while it is measured."""
    config = RoundConfig(goal=goal, deadline_s=1e9, patience_s=60.0)
    return Round(config, select=uniform(1, 1), now=0.0, available=available)


def plain_heap(clients: int) -> Measured:
    """The peer: push and pop a tuple an event, three events a client."""
    draw = random.Random(1)
    heap: list[tuple[float, int, str]] = []
    times = [draw.random() for _ in range(3 * clients)]
    begin = process_time()
    for number, time in enumerate(times):
        heappush(heap, (time, number, "client"))
    while heap:
        heappop(heap)
    return len(times), process_time() - begin


def happy(clients: int, *, ready_made: bool) -> Measured:
    """Everyone is offered the task, takes it and reports."""
    names = [f"client-{number:07}" for number in range(clients)]
    round_ = a_round(clients, names)
    round_.handle(Wake(), 0.0)
    if ready_made:
        events = [*map(OfferAccepted, names), *map(UpdateAccepted, names)]
        begin = process_time()
        for event in events:
            round_.handle(event, 1.0)
    else:
        begin = process_time()
        for name in names:
            round_.handle(OfferAccepted(name), 1.0)
        for name in names:
            round_.handle(UpdateAccepted(name), 1.0)
    seconds = process_time() - begin
    assert round_.cohort.accepted == clients
    return 2 * clients, seconds


def gather(clients: int) -> Measured:
    """Everyone attends, the last one opens the round, everyone is chosen."""
    names = [f"client-{number:07}" for number in range(clients)]
    round_ = a_round(clients, [])
    begin = process_time()
    for name in names:
        round_.handle(Attended(name), 0.0)
    seconds = process_time() - begin
    assert len(round_.cohort.phases) == clients
    return clients, seconds


def flapping(clients: int) -> Measured:
    """Every member leaves and comes back, three times."""
    names = [f"client-{number:07}" for number in range(clients)]
    round_ = a_round(clients, names)
    round_.handle(Wake(), 0.0)
    begin = process_time()
    for turn in range(3):
        for name in names:
            round_.handle(Left(name), float(turn))
        for name in names:
            round_.handle(Attended(name), float(turn))
    return 6 * clients, process_time() - begin


def replacing(clients: int) -> Measured:
    """Half are chosen and all of these fail, so that each is replaced from the other half."""
    names = [f"client-{number:07}" for number in range(clients)]
    round_ = a_round(clients // 2, names)
    round_.handle(Wake(), 0.0)
    cohort = list(round_.cohort.phases)
    begin = process_time()
    for name in cohort:
        round_.handle(ClientFailed(name), 1.0)
    seconds = process_time() - begin
    assert len(round_.cohort.phases) == 2 * (clients // 2)
    return len(cohort), seconds


def virtual_clock(clients: int) -> Measured:
    """A small simulation: 20 rounds of 1,000 of the clients, a tenth of whom vanish and return.

    What it costs beyond the heap and the engine is the draw, which looks at every client.
    """
    draw = random.Random(1)
    names = [f"client-{number:07}" for number in range(clients)]
    config = RoundConfig(goal=1000, over_selection=1.3, quorum=500, deadline_s=90.0)
    heap: list[tuple[float, int, Attended | Left | OfferAccepted | UpdateAccepted]] = []
    events = number = 0
    now = 0.0
    begin = process_time()
    for round_number in range(20):
        round_ = Round(config, select=uniform(1, round_number), now=now, available=names)
        effects = round_.handle(Wake(), now)
        closed = False
        while not closed:
            for effect in effects:
                match effect:
                    case Offer(client):
                        leaves = draw.random() < 0.1
                        heappush(heap, (now + 0.1, number, OfferAccepted(client)))
                        event = Left(client) if leaves else UpdateAccepted(client)
                        heappush(heap, (now + draw.expovariate(0.1), number + 1, event))
                        if leaves:
                            back = now + 20 + draw.random()
                            heappush(heap, (back, number + 2, Attended(client)))
                        number += 3
                    case Close():
                        closed = True
            at = round_.wake_at
            if at is not None and (not heap or at <= heap[0][0]):
                now = at
                effects = round_.handle(Wake(), now)
            elif heap and not closed:
                now, _, event = heappop(heap)
                effects = round_.handle(event, now)
            events += 1
        heap.clear()
    return events, process_time() - begin


CASES: dict[str, Callable[[int], Measured]] = {
    "heapq of tuples (the peer)": plain_heap,
    "engine: take the task, report": lambda clients: happy(clients, ready_made=True),
    "… with making the event": lambda clients: happy(clients, ready_made=False),
    "engine: attend, open": gather,
    "engine: leave, come back": flapping,
    "engine: fail, be replaced": replacing,
    "simulation: heap, engine, draws, all of it": virtual_clock,
}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rates = {}
    for name, case in CASES.items():
        measured = [case(arguments.clients) for _ in range(arguments.repeats)]
        rates[name] = max(events / seconds for events, seconds in measured)
    peer = next(iter(rates.values()))
    print(f"{arguments.clients:,} clients, best of {arguments.repeats}")
    for name, rate in rates.items():
        print(f"{name:44}{rate:12,.0f} events/s {1e6 / rate:7.2f} µs {rate / peer:6.2f} × peer")
    OUT.mkdir(exist_ok=True)
    report = {
        "clients": arguments.clients,
        "repeats": arguments.repeats,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "events_per_s": {name: round(rate) for name, rate in rates.items()},
    }
    (OUT / "engine_events.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
